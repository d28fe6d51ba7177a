"""How long does the exchange of gradients take alone? It tells how much of it trials hid."""

from __future__ import annotations

from typing import Any

from stepscope.analyze.scale_answer import KIND, gradient_bytes_of, scale_of
from stepscope.errors import MachineError, OutOfMemoryError
from stepscope.experiments.asking import ask
from stepscope.records import schema
from stepscope.records.reader import load_run
from stepscope.records.sweep import Sweep, SweepFolder, load_sweep
from stepscope.stats import median


def time_exchanges(folder: SweepFolder) -> None:
    """Time the exchange of the trials' gradients alone, where a prediction is asked for."""
    sweep = load_sweep(folder.path)
    asked = sweep.info[KIND]
    size_bytes = gradient_bytes_of(sweep)[0] if asked["predict"] else None
    if size_bytes is None:
        return
    device = _device_of(sweep)
    exchanges = [
        {"processes": count, **_exchange(count, size_bytes, device)}
        for count in scale_of(sweep).processes
        if count > 1
    ]
    folder.update_info(**{KIND: {**asked, "exchanges": exchanges}})


def _exchange(processes: int, size_bytes: int, device: str) -> dict[str, Any]:
    """Return the median of how long an exchange takes alone, or why that is unknown."""
    if not device.startswith("cpu"):
        reason = f"an exchange alone is timed between CPUs, and the trials were on {device}"
        return {"exchange_s": None, "reason": reason}
    asked = {"processes": processes, "bytes": size_bytes}
    try:
        answer = ask("stepscope.train.exchange_child", asked)
    except (MachineError, OutOfMemoryError) as error:
        return {"exchange_s": None, "reason": str(error)}
    return {"exchange_s": median(answer["exchange_s"]), "reason": None}


def _device_of(sweep: Sweep) -> str:
    done = next(trial for trial in sweep.trials if trial.status == schema.COMPLETED)
    return str(load_run(sweep.folder_of(done)).info["environment"]["device"])

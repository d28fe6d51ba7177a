"""What would more processes bring? A training in several numbers of them, tried in rounds.

refusals    what could only fail, or would compare nothing
exchange    the exchange of gradients alone, where a prediction is asked for

The record is a sweep folder of the kind `scale`: its trials are short runs, strong and weak. What
they mean is in `analyze.scaling_answer`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.analyze.scaling import Scale
from stepscope.analyze.scaling_answer import KIND, gradient_bytes_of, scale_of
from stepscope.analyze.sweep_summary import start_up_steps, whole_turns
from stepscope.data import dataset_registry
from stepscope.errors import Interrupted, MachineError, OutOfMemoryError, RequestError
from stepscope.experiments.sweep_run import SweepInterrupted, SweepListener, TrialBench, working_in
from stepscope.experiments.trial_order import plan_trials
from stepscope.experiments.workload import TrainingWorkload, workload_of
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import (
    Sweep,
    SweepFolder,
    create_sweep,
    load_sweep,
    load_sweep_of,
)
from stepscope.records.types import AllreduceRequest
from stepscope.settings import RunSpec
from stepscope.stats import median
from stepscope.supervisor.ask_process import ALLREDUCE, ask_process
from stepscope.train.source_settings import data_source_of

# --- How long does the exchange of gradients take alone? It tells how much of it trials hid


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
    asked: AllreduceRequest = {"processes": processes, "bytes": size_bytes}
    try:
        answer = ask_process(ALLREDUCE, asked)
    except (MachineError, OutOfMemoryError) as error:
        return {"exchange_s": None, "reason": str(error)}
    return {"exchange_s": median(answer["exchange_s"]), "reason": None}


def _device_of(sweep: Sweep) -> str:
    done = next(trial for trial in sweep.trials if trial.status == schema.COMPLETED)
    return str(load_run(sweep.folder_of(done)).info["environment"]["device"])


# --- Which measurements of scaling could only fail, or would compare nothing?


def check_numbers(scale: Scale, predict: Sequence[int]) -> None:
    """Refuse numbers of processes of which nothing could be said.

    Raises:
        RequestError: there is one to measure and none to predict, or one that is predicted is too
            small or too large.
    """
    if len(scale.processes) < 2 and not predict:
        raise RequestError(
            f"processes: wanted two numbers or more to compare, like 1,2; found {scale.base}. "
            "With --predict one is enough."
        )
    most = scale.processes[-1]
    for count in predict:
        if count <= most:
            raise RequestError(
                f"predict: wanted numbers above {most}, the most that is measured; found {count}."
            )
        if count > scale.batch_size:
            raise RequestError(
                "predict: wants at most as many processes as there are samples in a batch, "
                f"{scale.batch_size}, found {count}."
            )


def check_trial(workload: TrainingWorkload, values: dict[str, Any], batch_size: int) -> None:
    """Refuse a trial that could only fail; where its batch is not the one asked for, say so.

    Raises:
        RequestError: it could, or it is too short to give a figure.
    """
    try:
        workload.check(values)
        _check_length(workload.spec(values))
    except RequestError as error:
        if values["batch_size"] == batch_size:
            raise
        whole = f"{batch_size} samples for each of {values['processes']} processes"
        raise RequestError(f"{whole}: {error}") from error


def _check_length(spec: RunSpec) -> None:
    """Refuse an epoch of which nothing is left without its start."""
    samples, left_out = _training_samples(spec), start_up_steps(spec.model_dump())
    in_a_step = spec.batch_size * spec.accumulate
    steps = min(-(-samples // in_a_step), spec.max_steps or samples)
    if steps <= left_out:
        raise RequestError(
            f"wanted more than {left_out} steps an epoch, as its first {left_out} are left out; "
            f"found {steps}, of {in_a_step:,} samples each. Give more --samples or --max-steps, "
            "or a smaller --batch-size."
        )


def _training_samples(spec: RunSpec) -> int:
    dataset = dataset_registry.find(spec.data, data_source_of(spec))
    return dataset.count("train", spec.samples) - spec.validation


REPEATS = 3
_STEPS = 30


@dataclass(frozen=True)
class Prediction:
    """What is to be predicted; without a latency, none is assumed."""

    processes: tuple[int, ...]
    bandwidth_bytes_per_s: float
    latency_s: float | None = None


@dataclass(frozen=True)
class ScaleRequest:
    """The numbers of processes to try and how often; `asked` are the settings given by the user."""

    asked: Mapping[str, Any]
    processes: tuple[int, ...]
    repeats: int = REPEATS
    prediction: Prediction | None = None


def start(request: ScaleRequest, listener: SweepListener) -> Sweep:
    """Make the folder, and every trial in it.

    Raises:
        RequestError: a trial could only fail, or nothing would be compared; nothing was begun.
        SweepInterrupted: a stop was requested.
    """
    spec = TrainingWorkload(request.asked).spec({"processes": 1})
    scale = Scale(spec.batch_size, tuple(sorted(request.processes)))
    check_numbers(scale, () if request.prediction is None else request.prediction.processes)
    short = {"epochs": 1, "max_steps": _steps(spec)}
    # Gradients are counted with the memory forecast, which takes seconds.
    quick = request.prediction is None
    workload = TrainingWorkload({**short, **request.asked, "evaluate": False}, quick=quick)
    for values in scale.settings():
        check_trial(workload, values, spec.batch_size)
    seed = secrets.randbits(32)
    trials = plan_trials(scale.settings(), request.repeats, seed)
    info = {
        "kind": KIND,
        "directory": str(Path.cwd()),
        **workload.to_json(),
        "settings": scale.settings(),
        "over": None,
        "repeats": request.repeats,
        "seed": seed,
        "time_limit_s": None,
        "on": None,
        KIND: {**vars(scale), **_prediction_info(request.prediction), "exchanges": []},
    }
    name = spec.name or f"{KIND}-{spec.run_name}"
    return _carry_out(create_sweep(Path(spec.out), name, info, trials), listener)


def resume(path: Path, listener: SweepListener) -> Sweep:
    """Make the trials that are missing; where none is, the folder is left as it is."""
    recorded = load_sweep_of(path, KIND)
    if recorded.info.get("status") == schema.COMPLETED:
        return recorded
    with working_in(recorded.info.get("directory")):
        return _carry_out(SweepFolder(recorded.path), listener)


def _carry_out(folder: SweepFolder, listener: SweepListener) -> Sweep:
    bench = TrialBench(folder, workload_of(folder.read_info()), listener)
    try:
        with bench.open():
            bench.make_missing()
            time_exchanges(folder)
    except Interrupted:
        raise SweepInterrupted(folder.path, "scale") from None
    return load_sweep(folder.path)


def _steps(spec: RunSpec) -> int:
    return start_up_steps(spec.model_dump()) + whole_turns(_STEPS, spec.workers)


def _prediction_info(prediction: Prediction | None) -> dict[str, Any]:
    return {
        "predict": [] if prediction is None else sorted(prediction.processes),
        "bandwidth_bytes_per_s": None if prediction is None else prediction.bandwidth_bytes_per_s,
        "latency_s": None if prediction is None else prediction.latency_s,
    }

"""A run folder with everything that a page can show, written by hand in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from written_tables import epoch_row, step, write_table

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.records import schema
from stepscope.records.run_folder import create_at
from stepscope.records.run_reader import load_run

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&{{x}}"

_STEPS = 40
_BILL = {
    "items": {
        "runtime": {"bytes": 300 * 2**20, "how": "measured", "note": "", "pool": "host"},
        "activations": {"bytes": 80 * 2**20, "how": "counted", "note": "", "pool": "host"},
    },
    "total_bytes": 380 * 2**20,
    "limit_bytes": 512 * 2**20,
}
_WORK = {"multiply_adds": 1e6, "bytes": 1e5}
_LAYERS = [
    {"name": name, "kind": "Conv2d", "calls": 1, "forward_s": 0.002, "backward_s": 0.003, **_WORK}
    for name in ("features.0", EVIL)
]


def write_whole_run(path: Path, name: str = "lenet", **changes: Any) -> Path:
    """Write a completed run of two epochs; `spec` and `summary` are added to the usual ones."""
    spec = {"model": "lenet", "data": "shapes", "batch_size": 32, "layers": 5, "name": None}
    folder = create_at(path, name, "run", {**spec, **changes.get("spec", {})})
    slower = changes.get("slower", 1.0)
    write_table(path, schema.STEPS, [_step(slower, number) for number in range(_STEPS)])
    splits = [(epoch, split) for epoch in (1, 2) for split in ("train", "test")]
    write_table(path, schema.EPOCHS, [_epoch(*each) for each in splits])
    write_table(path, schema.TELEMETRY, [_sample(number) for number in range(30)])
    folder.add_event("checkpoint", 1.5, stage=1, took_s=0.1, note=changes.get("note", "kept"))
    measured = Measured(
        wall_s=4.0,
        peak_memory_bytes=400 * 2**20,
        layers=_LAYERS,
        forecast=_BILL,
        measured_bytes={"runtime": 310 * 2**20},
    )
    environment = {"hostname": "board", "cpu": "A57", "device": "cpu"}
    summary = {**summarize(load_run(path), measured), **changes.get("summary", {})}
    folder.close(status=schema.COMPLETED, environment=environment, summary=summary)
    return path


def unclosed(run: Path) -> Path:
    """Make a run one that still goes on."""
    info = json.loads((run / schema.RUN).read_text())
    (run / schema.RUN).write_text(json.dumps({**info, "status": "running", "summary": {}}))
    return run


def add_steps(run: Path, times: int = 1) -> None:
    """Append the steps of the second epoch so many times, three times as slow."""
    rows = (run / schema.STEPS).read_text().splitlines()[1 + _STEPS // 2 : 1 + _STEPS]
    with (run / schema.STEPS).open("a") as file:
        file.write("".join(row.replace("0.01,", "0.03,") + "\n" for row in rows * times))


def write_sweep_of_runs(path: Path, **repeats: tuple[float, ...]) -> Path:
    """Write a sweep over batch sizes, `b8=(1.0, 1.1)`: how slow each of its rounds was."""
    trials = []
    for setting, rounds in repeats.items():
        values = {"batch_size": int(setting.removeprefix("b"))}
        for repeat, slower in enumerate(rounds, 1):
            run = f"trials/{len(trials):03}"
            write_whole_run(path / run, spec=values, slower=slower * values["batch_size"] / 32)
            rate = 3200 / slower
            trial = {"index": len(trials), "values": values, "repeat": repeat, "run": run}
            metrics = {"samples_per_s": rate, "dropped_epochs": [1], "step_s": 0.01 * slower}
            trials.append({**trial, "status": "completed", "metrics": metrics})
    info = {"schema": 1, "kind": "sweep", "name": "sweep-batch_size", "trials": trials}
    (path / schema.SWEEP).write_text(json.dumps(info))
    return path


def _step(slower: float, number: int) -> dict[str, Any]:
    parts = {"data": 1, "transfer": 0, "forward": 3, "backward": 5, "optimizer": 1, "other": 0}
    times = {f"{name}_s": part * 1e-3 * slower for name, part in parts.items()}
    began = {"epoch": 1 + number // 20, "start_s": number * 0.01 * slower}
    loss = 2.3 - number * 0.01
    return step(1 + number % 20, **began, **times, step_s=0.01 * slower, loss=loss)


def _epoch(epoch: int, split: str) -> dict[str, Any]:
    times = {"loading_s": 0.02, "training_s": 0.18, "total_s": 0.2, "samples_per_s": 3200}
    loader = {"loader_start_s": 0.0, "loader_stop_s": 0.0}
    figures = {"loss": 2.3 / epoch, "accuracy": 0.3 * epoch, "samples": 640, "top5": None}
    return epoch_row(epoch, float(epoch), split=split, **loader, **times, **figures)


def _sample(number: int) -> dict[str, Any]:
    return {
        "time_s": number * 0.1,
        "pss_bytes": (100 + number * 10) * 2**20,
        "main_cpu_s": number * 0.09,
        "workers_cpu_s": number * 0.02,
        "read_bytes": number * 2**20,
        "pressure_cpu": 12.5,
        "pressure_io": 0,
        "power_w": 5.5,
    }

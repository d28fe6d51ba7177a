"""Run and sweep folders written by hand, with the figures that a test is about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whole_records import whole, whole_run
from written_tables import write_table

from stepscope.records.types import SweepRecord

ENVIRONMENT = {"hostname": "board", "cpu": "A57", "torch": "2.13.0", "threads": 2, "device": "cpu"}
SPEC = {"model": "lenet", "data": "shapes", "workers": 0, "batch_size": 64, "seed": 0}
PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")


def write_run(path: Path, samples_per_s: float | None = 100.0, **changes: Any) -> Path:
    """Write a run folder; `spec`, `environment` and `summary` are added to the usual ones."""
    path.mkdir(parents=True)
    info = {
        "schema": 1,
        "name": path.name,
        "kind": changes.get("kind", "run"),
        "status": changes.get("status", "completed"),
        "reason": changes.get("reason"),
        "spec": {**SPEC, "name": path.name, **changes.get("spec", {})},
        "environment": {**ENVIRONMENT, **changes.get("environment", {})},
        "summary": {
            "samples_per_s": samples_per_s,
            "dropped_epochs": [1],
            "peak_memory_bytes": 10**8,
            "test_accuracy": 0.5,
            "phases": {phase: {"share": 1 / 6, "mean_s": 0.02} for phase in PHASES},
            **changes.get("summary", {}),
        },
    }
    (path / "run.json").write_text(json.dumps(whole_run(info)))
    if "steps" in changes:
        write_steps(path, changes["steps"])
    return path


def write_steps(path: Path, times_s: Sequence[float], samples: Sequence[int] | int = 8) -> None:
    """Write full steps of one epoch that took these times."""
    sizes = [samples] * len(times_s) if isinstance(samples, int) else samples
    rows = [
        {"epoch": 1, "step": number, "samples": size, "step_s": step_s, "detail": "full"}
        for number, (step_s, size) in enumerate(zip(times_s, sizes, strict=True), 1)
    ]
    write_table(path, "steps.csv", rows)


def write_runs(folder: Path, rates: Sequence[float], **changes: Any) -> Path:
    """Write a folder of runs with these throughputs, and a `latest` link."""
    for number, rate in enumerate(rates):
        write_run(folder / f"run-{number}", rate, **changes)
    (folder / "latest").symlink_to(f"run-{len(rates) - 1}")
    return folder


def write_sweep(
    path: Path,
    over: Mapping[str, Sequence[Any]],
    rates: Mapping[Any, Sequence[float | str]],
    **changes: Any,
) -> Path:
    """Write a sweep over one axis; a word in place of a throughput is how that trial ended."""
    (axis,) = over
    trials = []
    rounds = max(map(len, rates.values()), default=0)
    # The order of a round is random: here it is turned round.
    for repeat in range(1, rounds + 1):
        for value in reversed(list(rates)):
            if repeat > len(rates[value]):
                continue
            result = rates[value][repeat - 1]
            done = not isinstance(result, str)
            index = len(trials)
            run = f"trials/{index:03}-{axis}-{value}"
            if done:
                write_run(path / run, float(result), spec={axis: value})
            trials.append(
                {
                    "index": index,
                    "values": {axis: value},
                    "repeat": repeat,
                    "status": "completed" if done else result,
                    "reason": None if done else "as the test wants it",
                    "run": run if done else None,
                    "metrics": {"samples_per_s": result, "step_s": 0.5, "dropped_epochs": [1]}
                    if done
                    else {},
                }
            )
    path.mkdir(parents=True, exist_ok=True)
    info = {
        "schema": 1,
        "kind": "sweep",
        "status": "completed",
        "mode": "train",
        "spec": {"model": "lenet", "samples": "320"},
        "script": None,
        "over": dict(over),
        "settings": [{axis: value} for value in over[axis]],
        "repeats": rounds,
        "trials": trials,
        **changes,
    }
    (path / "sweep.json").write_text(json.dumps(whole(SweepRecord, info)))
    return path

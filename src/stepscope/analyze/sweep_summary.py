"""What does each setting of a sweep come to, over its rounds?

`metrics` reduces one run to the figures that settings are compared by; `rows_of` combines the
rounds of each setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import compress, pairwise
from typing import Any, cast

from stepscope.analyze.comparison_sides import by_node_kind, settings_of
from stepscope.analyze.phase_shares import counted_steps
from stepscope.analyze.throughput import rate_of_trial
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.table import Table
from stepscope.records.types import (
    RateInterval,
    RecordedSpec,
    StepFigures,
    SweepRow,
    TrialMetrics,
)
from stepscope.stats import Interval, interval_of, known_mean, known_median


def rows_of(sweep: Sweep) -> list[SweepRow]:
    """Return a row for each setting, in the order in which they were requested.

    If several kinds of node ran the trials, a setting has a row for each kind.
    """
    sweep = by_node_kind(sweep)
    return [
        _row([trial for trial in sweep.trials if trial.values == values])
        for values in settings_of(sweep)
    ]


def _row(trials: Sequence[Trial]) -> SweepRow:
    done = [trial.metrics for trial in trials if trial.status == schema.COMPLETED]
    known = [rate_of_trial(each) for each in done]
    rates = [each.samples_per_s for each in known if each.samples_per_s is not None]
    return {
        "values": trials[0].values,
        "runs": len(trials),
        "completed": len(done),
        "samples_per_s": rate_interval(interval_of(rates) if rates else None),
        "step_s": known_median(each.get("step_s") for each in done),
        "data_share": known_median(map(_data_share, done)),
        "peak_memory_bytes": max(
            (peak for each in done if (peak := each.get("peak_memory_bytes"))), default=None
        ),
        "test_accuracy": known_median(each.get("test_accuracy") for each in done),
        "validation_accuracy": known_median(each.get("validation_accuracy") for each in done),
    }


def rate_interval(found: Interval | None) -> RateInterval:
    """Return an interval as plain values; all are None without one."""
    median, low, high = found or (None, None, None)
    return {"median": median, "low": low, "high": high}


def _data_share(metrics: TrialMetrics) -> float | None:
    phases = metrics.get("phases") or {}
    total = sum(phases.values())
    return phases["data"] / total if total else None


# --- Figures of one trial


_WARM_UP_STEPS = 2  # the first steps include the libraries' initialisation


def metrics(run: Run) -> TrialMetrics:
    """Return the figures of a run; unknown ones are None."""
    summary, steps = run.summary, run.steps
    phases = summary.get("phases") or {}
    dropped = summary.get("dropped_epochs") or []
    kept = counted_steps(steps, dropped)
    trained = run.epoch_rows("train")
    starts = [row["loader_start_s"] for row in trained if row["loader_start_s"] is not None]
    steady = steady_steps(run)
    figures = {
        "samples_per_s": summary.get("samples_per_s"),
        "dropped_epochs": dropped,
        "steady_samples_per_s": rate(steady),
        "steady_steps": len(steady),
        "steady": mean_step(cast("list[StepFigures]", steady)),
        "wall_s": summary.get("wall_s"),
        "epoch_s": known_mean([row["total_s"] for row in trained]),
        "step_s": known_mean(compress(steps["step_s"], kept)),
        "phases": {name: figures["mean_s"] for name, figures in phases.items()},
        "load_s": known_mean(compress(steps["load_s"], kept)),
        "load_cpu_s": known_mean(compress(steps["load_cpu_s"], kept)),
        "loader_start_s": max(starts, default=None),
        "loss": trained[-1]["loss"] if trained else None,
        "train_accuracy": summary.get("train_accuracy"),
        "test_accuracy": summary.get("test_accuracy"),
        "validation_accuracy": summary.get("validation_accuracy"),
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
        "page_cache": summary.get("page_cache"),
        "swap_used_bytes": (run.info.get("environment") or {}).get("swap_used_bytes"),
        "workers_lost": sum(event["event"] == "workers_fallback" for event in run.events),
        **_machine(run.telemetry, since_s=steps["start_s"][0] if len(steps) else 0.0),
    }
    return cast(TrialMetrics, {name: _finite(value) for name, value in figures.items()})


def _machine(telemetry: Table, since_s: float) -> dict[str, Any]:
    """Return the telemetry of the training itself, without the imports before it."""
    later = [row for row in telemetry.rows() if (row["time_s"] or 0.0) >= since_s]
    workers = [value for value in telemetry["workers_private_bytes"] if value]
    counts = [value for value in telemetry["workers"] if value]
    return {
        "read_bytes_per_s": _read_per_s(later),
        "pressure_cpu": known_mean([row["pressure_cpu"] for row in later]),
        "pressure_io": known_mean([row["pressure_io"] for row in later]),
        "worker_bytes": max(workers) // max(counts) if workers and counts else None,
    }


def _read_per_s(rows: list[dict[str, Any]]) -> float | None:
    """Return the bytes read per second; the counter falls when a worker exits."""
    known = [row for row in rows if row["read_bytes"] is not None]
    if len(known) < 2:
        return None
    read = sum(max(0, b["read_bytes"] - a["read_bytes"]) for a, b in pairwise(known))
    return float(read / (known[-1]["time_s"] - known[0]["time_s"]))


def _finite(value: Any) -> Any:
    """Return None for values that JSON cannot hold, such as a loss that diverged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def steady_steps(run: Run) -> list[dict[str, Any]]:
    """Return the steps of each epoch after its start.

    The first two are left out, and those whose batches the workers prefetched: their loading time
    says nothing about the rate of the loader.
    """
    left_out = start_up_steps(run.spec)
    return [
        row for row in run.steps.rows() if row["detail"] == schema.FULL and row["step"] > left_out
    ]


def start_up_steps(spec: RecordedSpec) -> int:
    """Return the number of steps at the start of an epoch that `steady_steps` leaves out.

    `spec` is that of a run, or of a trace with settings for the script's loader.
    """
    loader = spec.get("loader") or {}
    workers = spec.get("workers") or loader.get("num_workers") or 0
    prefetch = spec.get("prefetch") or loader.get("prefetch_factor") or 2
    filling = int(workers) * int(prefetch)
    return _WARM_UP_STEPS - (-filling // int(spec.get("accumulate") or 1))


def whole_turns(steps: int, workers: int) -> int:
    """Return the steps of as many whole turns of the workers as there are, at least one.

    Batches come in bursts, one from each worker: part of a burst would look too fast or too slow.
    """
    return max(workers, steps // workers * workers) if workers else steps


def mean_step(steps: Iterable[StepFigures]) -> StepFigures:
    """Return the mean of each figure over the steps that have it."""
    known = list(steps)
    return {
        "step_s": known_mean(each["step_s"] for each in known),
        "load_s": known_mean(each["load_s"] for each in known),
        "load_cpu_s": known_mean(each["load_cpu_s"] for each in known),
        "data_s": known_mean(each["data_s"] for each in known),
        "transfer_s": known_mean(each["transfer_s"] for each in known),
        "forward_s": known_mean(each["forward_s"] for each in known),
        "backward_s": known_mean(each["backward_s"] for each in known),
        "optimizer_s": known_mean(each["optimizer_s"] for each in known),
        "other_s": known_mean(each["other_s"] for each in known),
    }


def rate(rows: list[dict[str, Any]]) -> float | None:
    """Return the samples per second of some steps; None if no step records its samples."""
    known = [row for row in rows if row["samples"] is not None]
    took_s = sum(row["step_s"] for row in known)
    return sum(row["samples"] for row in known) / took_s if took_s else None

"""What does each setting of a sweep come to, over its rounds?"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from itertools import compress, pairwise
from typing import cast

from stepscope.analyze.comparison_sides import by_node_kind, settings_of
from stepscope.analyze.machine_load import cpu_use
from stepscope.analyze.phase_shares import counted_steps
from stepscope.analyze.prefetch_queue import slowdown_without_queue
from stepscope.analyze.throughput import rate_of_trial
from stepscope.analyze.what_binds import binding_steps
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.types import (
    RateInterval,
    RecordedSpec,
    StepFigures,
    SweepRow,
    TrialMetrics,
)
from stepscope.stats.intervals import Interval, interval_of, known_mean, known_median


def rows_of(sweep: Sweep) -> list[SweepRow]:
    """Return a row for each setting, and for each kind of node that ran it."""
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


_OF_A_STEP = tuple(StepFigures.__annotations__)
_WARM_UP_STEPS = 2  # the first steps include the libraries' initialisation


def metrics(run: Run) -> TrialMetrics:
    """Return the figures of a run; unknown ones are None."""
    summary, steps, telemetry = run.summary, run.steps, run.telemetry
    dropped = summary.get("dropped_epochs") or []
    kept, steady = counted_steps(steps, dropped), steady_steps(run)
    trained = run.epoch_rows("train")
    starts = [row["loader_start_s"] for row in trained if row["loader_start_s"] is not None]
    began_s = steps["start_s"][0] if len(steps) else 0.0  # telemetry begins before, with imports
    later = [(time_s or 0.0) >= began_s for time_s in telemetry["time_s"]]
    workers = [value for value in telemetry["workers_private_bytes"] if value]
    counts = [value for value in telemetry["workers"] if value]
    measured = rate(compress(steps["samples"], steady), compress(steps["step_s"], steady))
    slower = _slowdown(run, steady)
    use = cpu_use(run, -math.inf, math.inf)
    figures: TrialMetrics = {
        "samples_per_s": summary.get("samples_per_s"),
        "dropped_epochs": dropped,
        "steady_samples_per_s": measured / slower if measured else measured,
        "steady_steps": sum(steady),
        "steady": _mean_steady_step(run, steady if any(steady) else kept, slower),
        "wall_s": summary.get("wall_s"),
        "epoch_s": known_mean(row["total_s"] for row in trained),
        "step_s": known_mean(compress(steps["step_s"], kept)),
        "phases": {name: each["mean_s"] for name, each in (summary.get("phases") or {}).items()},
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
        "read_bytes_per_s": _read_per_s(
            compress(telemetry["time_s"], later), compress(telemetry["read_bytes"], later)
        ),
        "pressure_cpu": known_mean(compress(telemetry["pressure_cpu"], later)),
        "pressure_io": known_mean(compress(telemetry["pressure_io"], later)),
        "others_cpu_share": use.others_share if use else None,
        "disturbed": use.disturbs if use else None,
        "worker_bytes": max(workers) // max(counts) if workers and counts else None,
    }
    # JSON cannot hold a loss that diverged.
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }
    return cast("TrialMetrics", finite)


def _read_per_s(times_s: Iterable[float], read_bytes: Iterable[int | None]) -> float | None:
    """Return the bytes read per second; the counter falls when a worker exits."""
    known = [
        (at_s, read) for at_s, read in zip(times_s, read_bytes, strict=True) if read is not None
    ]
    if len(known) < 2:
        return None
    grown = sum(max(0, after - before) for (_, before), (_, after) in pairwise(known))
    return grown / (known[-1][0] - known[0][0])


def steady_steps(run: Run) -> list[bool]:
    """Return a mask of the steps of each epoch after warm-up and prefetched batches."""
    left_out = start_up_steps(run.spec)
    return [
        detail == schema.FULL and number > left_out
        for detail, number in zip(run.steps["detail"], run.steps["step"], strict=True)
    ]


def _slowdown(run: Run, steady: Sequence[bool]) -> float:
    """Return how many times as long the steady steps take once no batch is left of the start."""
    workers, prefetch = _workers_of(run.spec)
    if not workers or (run.spec.get("accumulate") or 1) != 1:  # a step has several batches
        return 1.0
    epochs, step_s = run.steps["epoch"], run.steps["step_s"]
    rows: dict[int, list[int]] = {}
    for row in compress(range(len(steady)), steady):
        rows.setdefault(epochs[row], []).append(row)
    times_s = [sum(step_s[row] for row in each) for each in rows.values()]
    slower = (slowdown_without_queue(run.steps, each, workers, prefetch) for each in rows.values())
    sustained_s = sum(map(operator.mul, times_s, slower))
    return sustained_s / sum(times_s) if sum(times_s) else 1.0


def _mean_steady_step(run: Run, steady: Sequence[bool], slower: float) -> StepFigures:
    """Return the mean of these steps; what it takes longer without a queue is waiting."""
    steps = binding_steps(run.steps)
    known = {name: known_mean(compress(steps[name], steady)) for name in _OF_A_STEP}
    step_s, data_s = known["step_s"], known["data_s"]
    if step_s is not None and data_s is not None:
        known |= {"step_s": slower * step_s, "data_s": data_s + (slower - 1) * step_s}
    return cast("StepFigures", known)


def start_up_steps(spec: RecordedSpec) -> int:
    """Return the number of steps at the start of an epoch that `steady_steps` leaves out."""
    workers, prefetch = _workers_of(spec)
    return _WARM_UP_STEPS - (-workers * prefetch // int(spec.get("accumulate") or 1))


def _workers_of(spec: RecordedSpec) -> tuple[int, int]:
    """Return the loader workers of a run, and how many batches each prefetches."""
    loader = spec.get("loader") or {}
    workers = spec.get("workers") or loader.get("num_workers") or 0
    return int(workers), int(spec.get("prefetch") or loader.get("prefetch_factor") or 2)


def whole_turns(steps: int, workers: int) -> int:
    """Return the steps of whole turns of the workers, as batches come in bursts, one from each.

    They are two turns at least: only a later batch of a worker shows what is left in the queue.
    """
    return max(2 * workers, steps // workers * workers) if workers else steps


def mean_step(steps: Iterable[StepFigures]) -> StepFigures:
    """Return the mean of each figure over the steps that have it."""
    known = [cast("dict[str, float | None]", each) for each in steps]
    means = {name: known_mean(each[name] for each in known) for name in _OF_A_STEP}
    return cast("StepFigures", means)


def rate(samples: Iterable[int | None], step_s: Iterable[float]) -> float | None:
    """Return the samples per second of some steps; None if no step records its samples."""
    known = [
        (count, took_s) for count, took_s in zip(samples, step_s, strict=True) if count is not None
    ]
    took_s = sum(took_s for _, took_s in known)
    return sum(count for count, _ in known) / took_s if took_s else None

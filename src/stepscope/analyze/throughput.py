"""How fast was a run, and was it steady? One figure for the run, and its warnings.

The throughput of a run that slowed down, sped up or was noisy says little about the next run. Such
a run gets a warning; its throughput is not corrected.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple, TypeGuard

from stepscope.analyze.phase_shares import dropped_epochs_of
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import TrialMetrics
from stepscope.stats import median, quantile
from stepscope.units import format_share

_START_UP_STEPS = 3  # these fill caches and prefetch buffers, and select algorithms
_FEWEST_STEPS = 5  # for a rate
_FEWEST_TO_SETTLE = 30  # ten in each third, for a trend
_DRIFT_SHARE = 0.1
_SLOW_TIMES = 2.0  # times the median, from which on a step is an outlier
_SLOW_SHARE = 0.1


_LATER_EPOCHS, _ALL_EPOCHS = "epochs after the first", "all epochs"
# For a trial that does not record its dropped epochs: either of the two above.
OF_A_SUMMARY = "the trial's summary"


class Throughput(NamedTuple):
    """Samples per second and their basis; without a figure, `basis` is the reason."""

    samples_per_s: float | None
    basis: str


def throughput_of(run: Run) -> Throughput:
    """Return the throughput from a run's summary, else from its steps."""
    summarized = run.summary.get("samples_per_s")
    if is_rate(summarized):
        dropped = run.summary.get("dropped_epochs")
        return Throughput(summarized, _LATER_EPOCHS if dropped else _ALL_EPOCHS)
    steps = _timed_steps(run)[_START_UP_STEPS:]
    if len(steps) < _FEWEST_STEPS:
        if len(run.steps) and not any(run.steps["samples"]):
            return Throughput(None, "its steps do not say how many samples they took")
        return Throughput(
            None,
            f"{len(steps)} steps were measured in full after the first {_START_UP_STEPS}, "
            f"and {_FEWEST_STEPS} are needed",
        )
    rate = sum(samples for samples, _ in steps) / sum(step_s for _, step_s in steps)
    return Throughput(rate, f"steps after the first {_START_UP_STEPS}")


def rate_of_trial(metrics: TrialMetrics) -> Throughput:
    """Return the throughput by which a trial of a sweep is compared.

    Without dropped epochs, the throughput of the whole trial includes the start of the loader, the
    warm-up and the prefetched batches, which in a short trial weigh as much as the setting that was
    varied.
    """
    dropped = metrics.get("dropped_epochs")
    steady = metrics.get("steady_samples_per_s")
    if dropped == [] and is_rate(steady) and metrics.get("steady_steps", 0) >= _FEWEST_STEPS:
        return Throughput(steady, "steps after the start")
    whole = metrics.get("samples_per_s")
    if not is_rate(whole):
        return Throughput(None, "its metrics have none")
    if dropped is None:
        return Throughput(whole, OF_A_SUMMARY)
    return Throughput(whole, _LATER_EPOCHS if dropped else _ALL_EPOCHS)


def is_rate(value: object) -> TypeGuard[float]:
    """Return whether a recorded value is a comparable rate: a number above 0."""
    return isinstance(value, int | float) and 0 < value < math.inf


def step_times(run: Run) -> list[float]:
    """Return the times of steps with full batches, without dropped epochs and start-up.

    The last batch of an epoch is often smaller: only the most common size counts.
    """
    dropped = dropped_epochs_of(run)
    steps = _timed_steps(run, dropped)
    if not dropped:
        steps = steps[_START_UP_STEPS:]
    sizes = Counter(samples for samples, _ in steps)
    commonest = max(sizes, key=lambda size: (sizes[size], size), default=0)
    return [step_s for samples, step_s in steps if samples == commonest]


def doubts_about(run: Run) -> dict[str, str]:
    """Return warnings on steps that `drift` or `do not settle`, by that name."""
    times = step_times(run)
    if len(times) < _FEWEST_TO_SETTLE:
        return {}
    doubts = {"drift": _drift(times), "do not settle": _unsettled(times)}
    return {doubt: how for doubt, how in doubts.items() if how}


def _drift(times: list[float]) -> str | None:
    third = len(times) // 3
    first, last = sorted(times[:third]), sorted(times[-third:])
    share = median(last) / median(first) - 1
    shorter, longer = sorted((first, last), key=median)
    # A change below the spread within a third is no trend.
    apart = median(longer) > quantile(shorter, 0.75) and median(shorter) < quantile(longer, 0.25)
    if abs(share) < _DRIFT_SHARE or not apart:
        return None
    course = "longer" if share > 0 else "shorter"
    return f"in the last third they are {format_share(abs(share))} {course} than in the first"


def _unsettled(times: list[float]) -> str | None:
    limit_s = _SLOW_TIMES * median(times)
    slow = [step_s for step_s in times if step_s > limit_s]
    share = sum(slow) / sum(times)
    if share < _SLOW_SHARE:
        return None
    return (
        f"{len(slow)} of {len(times)} take over twice the median, {format_share(share)} of the time"
    )


def _timed_steps(run: Run, dropped: list[int] | None = None) -> list[tuple[int, float]]:
    """List samples and time of the steps of full detail."""
    steps = run.steps
    rows = zip(steps["epoch"], steps["samples"], steps["step_s"], steps["detail"], strict=True)
    return [
        (samples, step_s)
        for epoch, samples, step_s, detail in rows
        if detail == schema.FULL and samples and step_s and epoch not in (dropped or ())
    ]

"""How fast was a run or a trial? Its samples per second, and what they are based on."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeGuard

from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import TrialMetrics

_START_UP_STEPS = 3  # these fill caches and prefetch buffers, and select algorithms
_FEWEST_STEPS = 5  # for a rate
_LATER_EPOCHS, _ALL_EPOCHS = "epochs after the first", "all epochs"


class Throughput(NamedTuple):
    """Samples per second and their basis; without a figure, `basis` is the reason."""

    samples_per_s: float | None
    basis: str


def throughput_of(run: Run) -> Throughput:
    """Return the throughput from a run's summary, else from its steps."""
    summarized = run.summary.get("samples_per_s")
    if _is_rate(summarized):
        dropped = run.summary.get("dropped_epochs")
        return Throughput(summarized, _LATER_EPOCHS if dropped else _ALL_EPOCHS)
    steps = run.steps
    rows = zip(steps["samples"], steps["step_s"], steps["detail"], strict=True)
    timed = [
        (samples, step_s)
        for samples, step_s, detail in rows
        if detail == schema.FULL and samples and step_s
    ][_START_UP_STEPS:]
    if len(timed) < _FEWEST_STEPS:
        if len(steps) and not any(steps["samples"]):
            return Throughput(None, "its steps do not record how many samples they took")
        return Throughput(
            None,
            f"wanted {_FEWEST_STEPS} steps in full detail after the first {_START_UP_STEPS}, found "
            f"{len(timed)}",
        )
    rate = sum(samples for samples, _ in timed) / sum(step_s for _, step_s in timed)
    return Throughput(rate, f"steps after the first {_START_UP_STEPS}")


def rate_of_trial(metrics: TrialMetrics) -> Throughput:
    """Return the throughput by which a trial is compared, without its start."""
    dropped = metrics.get("dropped_epochs") or []
    steady, whole = metrics.get("steady_samples_per_s"), metrics.get("samples_per_s")
    if not dropped and _is_rate(steady) and metrics.get("steady_steps", 0) >= _FEWEST_STEPS:
        return Throughput(steady, "steps after the start")
    if not _is_rate(whole):
        return Throughput(None, "the trial recorded none")
    return Throughput(whole, _LATER_EPOCHS if dropped else _ALL_EPOCHS)


def _is_rate(value: float | None) -> TypeGuard[float]:
    return value is not None and 0 < value < math.inf

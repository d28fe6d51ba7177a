"""Findings on the course of a run: start-up, outliers and drift."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.records import schema
from stepscope.stats import median, quantile
from stepscope.units import format_duration, format_share

_MUCH_START_UP = 0.2  # share of a later epoch
_LATER_EPOCHS = 2
_FAR = 3.0  # multiple of the median
_MUCH_FAR = 0.03  # share of the time
_AT_LEAST_FAR = 3
_NEAR_S = 1.0
_THIRD = 20  # steps in each third, for a comparison
_DRIFT = 0.1
_MOST_DESCRIBED = 5  # outliers to describe


def start_up(view: RunView) -> Finding | None:
    """Report the cost of the first epoch beyond that of a later one."""
    trained = [row for row in view.run.epochs.rows() if row["split"] == "train" and row["total_s"]]
    if len(trained) < 1 + _LATER_EPOCHS:
        return None
    first, later = trained[0], trained[1:]
    later_s = median([row["total_s"] for row in later])
    longest_s = max(row["total_s"] for row in later)
    extra_s = first["total_s"] - later_s
    if extra_s < _MUCH_START_UP * later_s or first["total_s"] <= longest_s:
        return None
    starts_s = median([row["loader_start_s"] for row in later])
    return Finding(
        "start_up",
        f"The first epoch takes {format_duration(extra_s)} longer than the others: figures leave "
        "it out, and a short run is mostly that.",
        (
            f"epoch 1: {format_duration(first['total_s'])}; later ones: "
            f"{format_duration(later_s)} (median of {len(later)})",
            f"its loader starts in {format_duration(first['loader_start_s'])}, later "
            f"{format_duration(starts_s)}",
        ),
        None,
        extra_s / sum(row["total_s"] for row in trained),
    )


def far_steps(view: RunView) -> Finding | None:
    """Report the time of steps far above the median, and the events during them."""
    limit_s = _FAR * view.median_s
    far = [number for number, took_s in enumerate(view.step_s) if took_s > limit_s]
    lost_s = sum(view.step_s[number] - view.median_s for number in far)
    share = lost_s / sum(view.step_s)
    if len(far) < _AT_LEAST_FAR or share < _MUCH_FAR:
        return None
    phases = _phases_of_excess(view, far)
    phase, excess_s = phases.most_common(1)[0]
    evidence = [
        f"{len(far)} of {len(view.step_s)} steps take more than {_FAR:g} times the median of "
        f"{format_duration(view.median_s)}; the longest {format_duration(max(view.step_s))}",
        f"{format_share(excess_s / sum(phases.values()))} of what they take more is in `{phase}`",
        *_what_happened(view, far),
    ]
    text = f"{format_share(share)} of the time goes into {len(far)} steps that take far longer"
    return Finding("far_steps", f"{text}, mostly in `{phase}`.", tuple(evidence), None, share)


def _phases_of_excess(view: RunView, far: list[int]) -> Counter[str]:
    """Return, by phase, the time of outliers beyond the median."""
    excess: Counter[str] = Counter()
    for phase in schema.PHASES:
        values = view.column(f"{phase}_s")
        usual = median(values)
        excess[phase] = sum(max(0.0, values[number] - usual) for number in far)
    return excess


def _what_happened(view: RunView, far: list[int]) -> list[str]:
    """List the events during outliers, and the telemetry meanwhile."""
    starts = view.column("start_s")
    events: Counter[str] = Counter()
    for event in view.run.events:
        for number in far:
            if starts[number] - _NEAR_S <= event["time_s"] <= starts[number] + view.step_s[number]:
                events[str(event["event"])] += 1
                break
    said = [f"{count} `{name}` events at those times" for name, count in events.items()]
    if pressed := _pressed(view, [starts[number] for number in far]):
        said.append(pressed)
    return said


def _pressed(view: RunView, times: list[float]) -> str | None:
    telemetry = view.run.telemetry
    clock: list[Any] = list(telemetry["time_s"])
    for column, what in (("pressure_memory", "memory"), ("pressure_io", "storage")):
        values = telemetry[column]
        then = [values[min(bisect_left(clock, t), len(clock) - 1)] for t in times if clock]
        known = [value for value in values if value is not None]
        if not known or any(value is None for value in then) or not then:
            continue
        if median(then) > 2 * median(known) + 0.05:
            return f"processes waited for {what} then more than usual"
    return None


def drift(view: RunView) -> Finding | None:
    """Report steps that got slower, or faster, from the first third to the last."""
    third = len(view.step_s) // 3
    if third < _THIRD:
        return None
    first, last = sorted(view.step_s[:third]), sorted(view.step_s[-third:])
    if not median(first):
        return None
    change = median(last) / median(first) - 1
    # Where the interquartile ranges of the thirds overlap, the difference may be noise.
    apart = quantile(last, 0.25) > quantile(first, 0.75) or quantile(last, 0.75) < quantile(
        first, 0.25
    )
    if abs(change) < _DRIFT or not apart:
        return None
    how = "slower" if change > 0 else "faster"
    ratio = median(last) / median(first)
    return Finding(
        "drift",
        f"Steps get {how} on the way, {ratio:.2f} times as long at the end as at the start: one "
        "figure for the whole run says little about the next.",
        (
            f"first third: {format_duration(median(first))}, last third: "
            f"{format_duration(median(last))} (medians of {third} steps)",
            *_clock(view),
        ),
        None,
        min(1.0, abs(change)),
    )


def _clock(view: RunView) -> list[str]:
    mhz = [value for value in view.run.telemetry["cpu_mhz"] if value is not None]
    third = len(mhz) // 3
    if third < 3:
        return []
    first, last = median(mhz[:third]), median(mhz[-third:])
    return [f"the CPUs' clock: {first:,.0f} MHz, then {last:,.0f} MHz"]

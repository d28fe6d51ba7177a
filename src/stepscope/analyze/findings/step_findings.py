"""Findings on the course of a run: its start, single steps, and where it drifts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

from stepscope.analyze.findings.finding import Finding
from stepscope.analyze.findings.run_view import Look
from stepscope.records import schema
from stepscope.stats import median, quantile
from stepscope.units import format_duration, format_share

_MUCH_START_UP = 0.2  # of a later epoch
_LATER_EPOCHS = 2
_FAR = 3.0  # times the median
_MUCH_FAR = 0.03  # of the time
_AT_LEAST_FAR = 3
_NEAR_S = 1.0
_THIRD = 20  # steps in each, before they are compared
_DRIFT = 0.1
_TELLING = 5  # far steps that are described


def start_up(look: Look) -> Finding | None:
    """Say what the first epoch costs beyond a later one."""
    trained = [row for row in look.run.epochs.rows() if row["split"] == "train" and row["total_s"]]
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


def far_steps(look: Look) -> Finding | None:
    """Say how much time goes into steps far from the median, and what happened then."""
    limit_s = _FAR * look.median_s
    far = [number for number, took_s in enumerate(look.step_s) if took_s > limit_s]
    lost_s = sum(look.step_s[number] - look.median_s for number in far)
    share = lost_s / sum(look.step_s)
    if len(far) < _AT_LEAST_FAR or share < _MUCH_FAR:
        return None
    phases = _phases_of_excess(look, far)
    phase, excess_s = phases.most_common(1)[0]
    evidence = [
        f"{len(far)} of {len(look.step_s)} steps take more than {_FAR:g} times the median of "
        f"{format_duration(look.median_s)}; the longest {format_duration(max(look.step_s))}",
        f"{format_share(excess_s / sum(phases.values()))} of what they take more is in `{phase}`",
        *_what_happened(look, far),
    ]
    text = f"{format_share(share)} of the time goes into {len(far)} steps that take far longer"
    return Finding("far_steps", f"{text}, mostly in `{phase}`.", tuple(evidence), None, share)


def _phases_of_excess(look: Look, far: list[int]) -> Counter[str]:
    """Return, by phase, what far steps take more than is usual."""
    excess: Counter[str] = Counter()
    for phase in schema.PHASES:
        values = look.column(f"{phase}_s")
        usual = median(values)
        excess[phase] = sum(max(0.0, values[number] - usual) for number in far)
    return excess


def _what_happened(look: Look, far: list[int]) -> list[str]:
    """Name the events that fall into far steps, and what the machine read meanwhile."""
    starts = look.column("start_s")
    events: Counter[str] = Counter()
    for event in look.run.events:
        for number in far:
            if starts[number] - _NEAR_S <= event["time_s"] <= starts[number] + look.step_s[number]:
                events[str(event["event"])] += 1
                break
    said = [f"{count} `{name}` events at those times" for name, count in events.items()]
    if pressed := _pressed(look, [starts[number] for number in far]):
        said.append(pressed)
    return said


def _pressed(look: Look, times: list[float]) -> str | None:
    telemetry = look.run.telemetry
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


def drift(look: Look) -> Finding | None:
    """Say that steps got slower, or faster, from the first third to the last."""
    third = len(look.step_s) // 3
    if third < _THIRD:
        return None
    first, last = sorted(look.step_s[:third]), sorted(look.step_s[-third:])
    if not median(first):
        return None
    change = median(last) / median(first) - 1
    # Half of each third lies between its quartiles: where those overlap, it may be noise.
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
            *_clock(look),
        ),
        None,
        min(1.0, abs(change)),
    )


def _clock(look: Look) -> list[str]:
    mhz = [value for value in look.run.telemetry["cpu_mhz"] if value is not None]
    third = len(mhz) // 3
    if third < 3:
        return []
    first, last = median(mhz[:third]), median(mhz[-third:])
    return [f"the CPUs' clock: {first:,.0f} MHz, then {last:,.0f} MHz"]

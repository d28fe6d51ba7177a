"""How many joules did each phase of a step take?

Measured, where a phase lasts several periods of the sensor, so that its own stretch of the curve
can be cut out. Otherwise estimated: the run is cut into windows of several periods, and their
energy is fitted by least squares as a sum of the phases' times, each with a power of its own. That
works as far as windows differ in what they spend their time on, and the interval says how far.

A reading may be as old as the sensor's own period, so the fit is made twice, with readings as of
when they were read and as of that much before; the interval spans both.

Windows begin and end at readings, where the energy is known, and steps are cut there; cut at the
ends of steps they would smear the power of one phase over its neighbours, always the same ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from stepscope.analyze.energy_curve import Curve
from stepscope.records import schema
from stepscope.records.table import Table
from stepscope.stats import median
from stepscope.stats.least_squares import least_squares

MEASURED, ESTIMATED = "measured", "estimated"
_SEVERAL = 4.0  # periods of the sensor
_LEAST_SHARE = 0.02  # of the time: below, a phase is too short to be told from the rest
_MOST_WINDOWS = 2000
_WINDOWS_EACH = 3  # for every phase, at least
_ALIKE = "windows all spend their time alike: the joules of phases cannot be told apart"
_FILLED = 0.98  # of a window must be in phases
ON_DEVICE = ("transfer", "forward", "backward", "optimizer", "idle")


@dataclass(frozen=True)
class SeenSteps:
    """Steps of full detail: when each began, how long it took, and its phases in their order."""

    start_s: Sequence[float]
    step_s: Sequence[float]
    phases: Mapping[str, Sequence[float]]
    before_s: Mapping[str, Sequence[float]]  # by phase, its time in all steps before each
    unseen: float  # all steps' time over that of these: the others stand in by extrapolation


def joules_by_phase(
    seen: SeenSteps, curve: Curve, lag_s: float, *, in_one_piece: bool
) -> dict[str, dict[str, Any]]:
    """Return joules, how they were got and an interval by phase.

    `lag_s` is how old a reading may be. `in_one_piece`: every phase comes once a step and in its
    usual order, so that it can be cut out.
    On a device with a time of its own, phases are the device's, and always estimated.
    """
    if curve.period_s is None:
        same = "the sensor said the same throughout: its period, and with it phases, are unknown"
        return unknown_by_phase(seen, same)
    estimated = _estimate(seen, curve, lag_s)
    on_host = "other" in seen.phases
    return {
        phase: (in_one_piece and on_host and _measure(seen, phase, curve)) or estimated[phase]
        for phase in seen.phases
    }


def unknown_by_phase(seen: SeenSteps, reason: str) -> dict[str, dict[str, Any]]:
    """Return what `joules_by_phase` does where nothing can be said of any phase."""
    return {phase: _unknown(reason) for phase in seen.phases}


def seen_steps(steps: Table) -> SeenSteps | None:
    """Take the steps whose phases are known, by the device's time where it has one of its own.

    None where there is no such step.
    """
    chosen = [place for place, detail in enumerate(steps["detail"]) if detail == schema.FULL]
    names = {phase: f"{phase}_s" for phase in schema.PHASES}
    on_device = [place for place in chosen if steps["forward_device_s"][place] is not None]
    if on_device:
        chosen = on_device
        names = {phase: f"{phase}_device_s" for phase in ON_DEVICE}

    def column(name: str) -> list[float]:
        values = steps[name]
        return [values[place] or 0.0 for place in chosen]

    step_s = column("step_s")
    if not sum(step_s):
        return None
    phases = {phase: column(name) for phase, name in names.items()}
    before_s = {phase: array("d", accumulate(took, initial=0.0)) for phase, took in phases.items()}
    unseen = sum(steps["step_s"]) / sum(step_s)
    return SeenSteps(column("start_s"), step_s, phases, before_s, unseen)


def _measure(seen: SeenSteps, phase: str, curve: Curve) -> dict[str, Any] | None:
    """Cut a phase out of the curve; None where it is too short for that, or was not read."""
    times_s = seen.phases[phase]
    if median(times_s) < _SEVERAL * (curve.period_s or 0.0):
        return None
    before = list(seen.phases)[: list(seen.phases).index(phase)]
    total_j = 0.0
    for place, start_s in enumerate(seen.start_s):
        from_s = start_s + sum(seen.phases[each][place] for each in before)
        joules = curve.between(from_s, from_s + times_s[place])
        if joules is None:
            return None
        total_j += joules
    return {"joules": total_j * seen.unseen, "how": MEASURED, "interval": None, "reason": None}


def _estimate(seen: SeenSteps, curve: Curve, lag_s: float) -> dict[str, dict[str, Any]]:
    """Fit the power of each phase over windows, and put the fits for both ages together."""
    fresh, old = (_fit(seen, curve, age_s) for age_s in (0.0, lag_s))
    return {phase: _either(fresh[phase], old[phase]) for phase in seen.phases}


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    for each in (one, other):
        if each["joules"] is None:
            return each
    low = min(one["interval"][0], other["interval"][0])
    high = max(one["interval"][1], other["interval"][1])
    return {**one, "joules": (one["joules"] + other["joules"]) / 2, "interval": [low, high]}


def _fit(seen: SeenSteps, curve: Curve, age_s: float) -> dict[str, dict[str, Any]]:
    all_s = sum(map(sum, seen.phases.values()))
    fitted = [name for name, took in seen.phases.items() if sum(took) >= _LEAST_SHARE * all_s]
    short = f"less than {_LEAST_SHARE:.0%} of the time: too short to be told from the rest"
    found = {name: _unknown(short) for name in seen.phases}
    windows = list(_windows(seen, curve, age_s))
    if len(windows) < _WINDOWS_EACH * len(fitted):
        few = f"{len(windows)} windows of {_SEVERAL:g} sensor periods are too few to tell apart"
        return found | {name: _unknown(f"{few} {len(fitted)} phases") for name in fitted}
    rows = [[times_s[name] for name in fitted] for times_s, _ in windows]
    fit = least_squares(rows, [joules for _, joules in windows])
    known_j = sum(joules for _, joules in windows)
    for place, name in enumerate(fitted):
        found[name] = _unknown(_ALIKE)
        windowed_s = sum(row[place] for row in rows)
        if fit is None or not windowed_s:
            continue
        middle, margin = (w * windowed_s for w in (fit.coefficients[place], fit.margin(place)))
        low, high = max(0.0, middle - margin), min(known_j, middle + margin)
        if low <= high and high - low < known_j:
            # Beyond the windows (a step that was not read) phases are taken to need as much.
            beyond = sum(seen.phases[name]) / windowed_s * seen.unseen
            found[name] = {
                "joules": min(max(middle, low), high) * beyond,
                "how": ESTIMATED,
                "interval": [low * beyond, high * beyond],
                "reason": None,
            }
    return found


def _unknown(reason: str) -> dict[str, Any]:
    return {"joules": None, "how": None, "interval": None, "reason": reason}


def _windows(
    seen: SeenSteps, curve: Curve, age_s: float
) -> Iterator[tuple[dict[str, float], float]]:
    """Give the time in each phase, and the joules, from one reading to a later one.

    `age_s`: how old the readings are taken to be.
    Windows in which something else went on, an evaluation or a step without detail, are left out.
    """
    spent = ((read_s, _spent_until(seen, read_s - age_s)) for read_s in _edges(curve))
    for (read_s, before), (read_again_s, after) in pairwise(spent):
        times_s = {phase: after[phase] - before[phase] for phase in seen.phases}
        if sum(times_s.values()) >= _FILLED * (read_again_s - read_s):
            yield times_s, curve.at(read_again_s) - curve.at(read_s)


def _edges(curve: Curve) -> list[float]:
    """Choose readings that lie several periods apart."""
    least_s = max(_SEVERAL * (curve.period_s or 0.0), (curve.end_s - curve.start_s) / _MOST_WINDOWS)
    edges = [curve.start_s]
    for time_s in curve.times_s:
        if time_s - edges[-1] >= least_s:
            edges.append(time_s)
    return edges


def _spent_until(seen: SeenSteps, time_s: float) -> dict[str, float]:
    """Return how long each phase has lasted until then, the step cut that goes on at that time."""
    place = max(0, bisect_right(seen.start_s, time_s) - 1)
    left_s = time_s - seen.start_s[place]
    spent = {}
    for phase, times_s in seen.phases.items():
        spent[phase] = seen.before_s[phase][place] + min(max(0.0, left_s), times_s[place])
        left_s -= times_s[place]
    return spent

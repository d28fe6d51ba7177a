"""How many joules did a run take, in total, by epoch and by phase?

Domains that contain one another are never added up: the total takes the widest that were read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

from stepscope.analyze.energy_curve import Curve, Reading, add_up, curve_of, left_out
from stepscope.records import schema
from stepscope.records.energy_readings import widest
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import (
    EnergyFigures,
    EnergySensor,
    EnergySensorFailure,
    EnergySensorFigures,
    EnergySensorsEvent,
    EnergyUse,
    PhaseEnergy,
    Summary,
)
from stepscope.stats.intervals import median
from stepscope.stats.least_squares import least_squares

# --- Joules by phase


_SEVERAL = 4.0  # in periods of the sensor
_LEAST_SHARE = 0.02  # share of the time below which a phase cannot be separated from the rest
_MOST_WINDOWS = 2000
_WINDOWS_EACH = 3  # at least, for every phase
_ALIKE = "all windows have the same mix of phases, so the phases cannot be separated"
_FILLED = 0.98  # share of a window that must be in phases


@dataclass(frozen=True)
class SeenSteps:
    """Steps of full detail: their starts and phases."""

    start_s: Sequence[float]
    phases: Mapping[str, Sequence[float]]
    before_s: Mapping[str, Sequence[float]]  # by phase, its cumulative time before each step
    unseen: float  # time of all steps over that of these, for extrapolation


def joules_by_phase(
    seen: SeenSteps, curve: Curve, lag_s: float, *, in_one_piece: bool
) -> dict[str, PhaseEnergy]:
    """Return joules, method and interval by phase.

    `lag_s` is the largest age of a reading. `in_one_piece` says that every phase comes once a step,
    so that it can be cut out of the curve.
    """
    if curve.period_s is None:
        same = "the sensor gave the same reading throughout, so its period is unknown"
        return {phase: _unknown(same) for phase in seen.phases}
    fresh, old = (_fit(seen, curve, age_s) for age_s in (0.0, lag_s))
    on_host = "idle" not in seen.phases
    return {
        phase: (in_one_piece and on_host and _measure(seen, phase, curve))
        or _combine(fresh[phase], old[phase])
        for phase in seen.phases
    }


def seen_steps(steps: Table) -> SeenSteps | None:
    """Return the steps with known phases, in an asynchronous device's time; None without any."""
    chosen = [place for place, detail in enumerate(steps["detail"]) if detail == schema.FULL]
    names = {phase: f"{phase}_s" for phase in schema.PHASES}
    on_device = [place for place in chosen if steps["forward_device_s"][place] is not None]
    if on_device:
        chosen = on_device
        names = {phase: f"{phase}_device_s" for phase in schema.DEVICE_PHASES}

    def column(name: str) -> list[float]:
        values = steps[name]
        return [values[place] or 0.0 for place in chosen]

    seen_s = sum(column("step_s"))
    if not seen_s:
        return None
    phases = {phase: column(name) for phase, name in names.items()}
    before_s = {phase: array("d", accumulate(took, initial=0.0)) for phase, took in phases.items()}
    return SeenSteps(column("start_s"), phases, before_s, sum(steps["step_s"]) / seen_s)


def _measure(seen: SeenSteps, phase: str, curve: Curve) -> PhaseEnergy | None:
    """Cut a phase out of the curve; None if it is too short for that, or was not read."""
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
    return {"joules": total_j * seen.unseen, "how": "measured", "interval": None, "reason": None}


def _combine(one: PhaseEnergy, other: PhaseEnergy) -> PhaseEnergy:
    """Return the mean of two fits, with an interval that covers both."""
    if one["joules"] is None or one["interval"] is None:
        return one
    if other["joules"] is None or other["interval"] is None:
        return other
    (low, high), (other_low, other_high) = one["interval"], other["interval"]
    return {
        **one,
        "joules": (one["joules"] + other["joules"]) / 2,
        "interval": [min(low, other_low), max(high, other_high)],
    }


def _fit(seen: SeenSteps, curve: Curve, age_s: float) -> dict[str, PhaseEnergy]:
    """Fit the power of each phase over windows, with readings of an age."""
    all_s = sum(map(sum, seen.phases.values()))
    fitted = [name for name, took in seen.phases.items() if sum(took) >= _LEAST_SHARE * all_s]
    short = f"less than {_LEAST_SHARE:.0%} of the time: too short to separate"
    found = {name: _unknown(short) for name in seen.phases}
    windows = list(_windows(seen, curve, age_s))
    if len(windows) < _WINDOWS_EACH * len(fitted):
        few = f"{len(windows)} windows of {_SEVERAL:g} sensor periods are too few to separate"
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
            # Steps outside the windows are assumed to take the same power.
            beyond = sum(seen.phases[name]) / windowed_s * seen.unseen
            found[name] = {
                "joules": min(max(middle, low), high) * beyond,
                "how": "estimated",
                "interval": [low * beyond, high * beyond],
                "reason": None,
            }
    return found


def _unknown(reason: str) -> PhaseEnergy:
    return {"joules": None, "how": None, "interval": None, "reason": reason}


def _windows(
    seen: SeenSteps, curve: Curve, age_s: float
) -> Iterator[tuple[dict[str, float], float]]:
    """Yield the time in each phase, and the joules, between readings of an assumed age."""
    least_s = max(_SEVERAL * (curve.period_s or 0.0), (curve.end_s - curve.start_s) / _MOST_WINDOWS)
    edges = [curve.start_s]
    for time_s in curve.times_s:
        if time_s - edges[-1] >= least_s:
            edges.append(time_s)
    spent = ((read_s, _spent_until(seen, read_s - age_s)) for read_s in edges)
    for (read_s, before), (read_again_s, after) in pairwise(spent):
        times_s = {phase: after[phase] - before[phase] for phase in seen.phases}
        if sum(times_s.values()) >= _FILLED * (read_again_s - read_s):
            yield times_s, curve.at(read_again_s) - curve.at(read_s)


def _spent_until(seen: SeenSteps, time_s: float) -> dict[str, float]:
    """Return the time in each phase up to a moment, cutting the step in progress."""
    place = max(0, bisect_right(seen.start_s, time_s) - 1)
    left_s = time_s - seen.start_s[place]
    spent = {}
    for phase, times_s in seen.phases.items():
        spent[phase] = seen.before_s[phase][place] + min(max(0.0, left_s), times_s[place])
        left_s -= times_s[place]
    return spent


_NOT_READ = "no energy sensor was read during this run"
_LASTING = 0.9  # of the longest time that a domain was read: others failed on the way


@dataclass(frozen=True)
class _ReadDomain:
    """A domain that was read, by one sensor."""

    sensor: EnergySensor
    readings: int
    curve: Curve
    refresh_s: float | None  # where it was observed before the run
    idle_w: float | None


def energy_of(run: Run, summary: Summary) -> tuple[EnergyFigures | None, str]:
    """Return the energy figures, or None and the reason; `summary` has the run's other figures."""
    sensor_events = [event for event in run.events if event["event"] == "energy_sensors"]
    if run.spec.get("energy") == "off":
        return None, "not requested: --energy auto"
    if not sensor_events:
        return None, _NOT_READ
    hosts = {rank["host"] for rank in summary.get("ranks") or ()}
    if len(hosts) > 1:
        return None, f"the ranks were on {len(hosts)} machines, and sensors of only one were read"
    if not any(event["sensors"] for event in sensor_events):
        return None, str(sensor_events[-1].get("reason") or _NOT_READ)
    domains = _domains(run, sensor_events)
    if not domains:
        return None, "no energy sensor gave two different readings"
    contains = {n: d.sensor["contains"] for n, d in domains.items() if d.sensor["addable"]}
    spans_s = {name: each.curve.end_s - each.curve.start_s for name, each in domains.items()}
    lasting_s = _LASTING * max(spans_s.values())
    covers = widest({name: contains[name] for name in contains if spans_s[name] >= lasting_s})
    idle_w = [domains[name].idle_w for name in covers]
    figures: EnergyFigures = {
        "joules": None,
        "sensors": [_about_sensor(each) for each in domains.values()],
        "refused": {name: why for event in sensor_events for name, why in event["refused"].items()},
        "failed": [
            cast("EnergySensorFailure", {k: v for k, v in event.items() if k != "event"})
            for event in run.events
            if event["event"] == "energy_sensor_failed"
        ],
        "covers": covers,
        "leaves_out": left_out(covers, domains, contains),
        "idle_w": sum(filter(None, idle_w)) if covers and None not in idle_w else None,
        "domains": {
            name: {
                "sensor": each.sensor["name"],
                "idle_w": each.idle_w,
                **_use_of(run, each.curve),
            }
            for name, each in domains.items()
        },
    }
    if not covers:
        return figures, "what the rails supply is unknown, so they cannot be added up"
    total = add_up([domains[name].curve for name in covers])
    whole = _use_of(run, total)
    joules, wall_s, resting_w = whole["joules"], summary.get("wall_s"), figures["idle_w"]
    samples, accuracy = summary.get("samples"), summary.get("test_accuracy")
    seen = seen_steps(run.steps)
    in_one_piece = run.info.get("kind") != "trace" and run.spec.get("accumulate", 1) == 1
    lag_s = max(domains[name].refresh_s or domains[name].curve.period_s or 0.0 for name in covers)
    return {
        **figures,
        **whole,
        "phases": joules_by_phase(seen, total, lag_s, in_one_piece=in_one_piece) if seen else None,
        "above_idle_j": None if resting_w is None else joules - resting_w * whole["covered_s"],
        "samples_per_j": samples / joules if samples and joules else None,
        "accuracy_per_j": accuracy / joules if accuracy is not None and joules else None,
        "accuracy_per_s": accuracy / wall_s if accuracy is not None and wall_s else None,
    }, ""


def _domains(run: Run, sensor_events: Sequence[EnergySensorsEvent]) -> dict[str, _ReadDomain]:
    sensors = {each["name"]: each for event in sensor_events for each in event["sensors"]}
    readings: dict[str, list[Reading]] = defaultdict(list)
    table = run.energy
    columns = (table["time_s"], table["sensor"], table["energy_j"], table["power_w"])
    for time_s, name, energy_j, power_w in zip(*columns, strict=True):
        value = power_w if energy_j is None else energy_j
        if name in sensors and time_s is not None and value is not None:
            readings[name].append((time_s, value))
    away_s = [event["time_s"] for event in run.events if event["event"] == "resume"]
    # The idle readings of a resume do not count: the machine is still warm then.
    idle = next((event for event in run.events if event["event"] == "energy_idle"), None)
    idle_readings = idle["readings"] if idle else {}
    refresh_s = (idle.get("refresh_s") if idle else None) or {}
    found: dict[str, _ReadDomain] = {}
    for name, sensor in sensors.items():
        kind, range_j = sensor["kind"], sensor["range_j"]
        curve = curve_of(readings[name], kind, range_j, away_s)
        before = curve_of([(t, v) for t, v in idle_readings.get(name, ())], kind, range_j)
        if curve is not None and sensor["domain"] not in found:
            idle_w = before.mean_w if before else None
            about = (sensor, len(readings[name]), curve, refresh_s.get(name), idle_w)
            found[sensor["domain"]] = _ReadDomain(*about)
    return found


def _about_sensor(domain: _ReadDomain) -> EnergySensorFigures:
    return {
        "name": domain.sensor["name"],
        "domain": domain.sensor["domain"],
        "kind": domain.sensor["kind"],
        "period_s": domain.curve.period_s,
        "refresh_s": domain.refresh_s,
        "readings": domain.readings,
        "from_s": domain.curve.start_s,
        "to_s": domain.curve.end_s,
    }


def _use_of(run: Run, curve: Curve) -> EnergyUse:
    """Return the joules and the power of a curve, by run and by epoch."""
    return {
        "joules": curve.joules[-1],
        "covered_s": curve.end_s - curve.start_s,
        "bridged_s": curve.bridged_s,
        "mean_w": curve.mean_w,
        "period_s": curve.period_s,
        "epochs": [
            {
                "epoch": row["epoch"],
                "split": row["split"],
                "joules": curve.between(row["start_s"], row["start_s"] + row["total_s"]),
            }
            for row in run.epoch_rows()
        ],
    }

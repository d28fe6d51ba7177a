"""How many joules did a run take, in total, by epoch and by phase?

Everything comes from the run folder: `energy.csv` has the raw readings, and events describe the
sensors, the idle power before the run, and failures. Domains that contain one another are never
added up: the total takes the widest that were read, and says what it leaves out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

from stepscope.analyze.energy_curve import (
    Curve,
    Reading,
    Stretch,
    add_up,
    changes_of,
    curve_of,
    joined,
    left_out,
)
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import (
    EnergyFigures,
    EnergyIdleEvent,
    EnergySensor,
    EnergySensorFailure,
    EnergySensorFigures,
    EnergySensorsEvent,
    EnergyUse,
    PhaseEnergy,
    Summary,
)
from stepscope.stats import median
from stepscope.stats.least_squares import least_squares

# --- Joules by phase


MEASURED, ESTIMATED = "measured", "estimated"
_SEVERAL = 4.0  # in periods of the sensor
_LEAST_SHARE = 0.02  # share of the time below which a phase cannot be separated from the rest
_MOST_WINDOWS = 2000
_WINDOWS_EACH = 3  # at least, for every phase
_ALIKE = "windows all spend their time alike: the joules of phases cannot be told apart"
_FILLED = 0.98  # share of a window that must be in phases
ON_DEVICE = ("transfer", "forward", "backward", "optimizer", "idle")


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

    `lag_s` is the largest age of a reading. `in_one_piece` says that every phase comes once a step
    and in its usual order, so that it can be cut out of the curve. With an asynchronous device,
    phases are the device's, and always estimated.
    """
    if curve.period_s is None:
        same = "the sensor said the same throughout: its period, and with it phases, are unknown"
        return unknown_by_phase(seen, same)
    fresh, old = (_fit(seen, curve, age_s) for age_s in (0.0, lag_s))
    on_host = "other" in seen.phases
    return {
        phase: (in_one_piece and on_host and _measure(seen, phase, curve))
        or _combine(fresh[phase], old[phase])
        for phase in seen.phases
    }


def unknown_by_phase(seen: SeenSteps, reason: str) -> dict[str, PhaseEnergy]:
    """Return the result of `joules_by_phase` where no phase can be measured."""
    return {phase: _unknown(reason) for phase in seen.phases}


def seen_steps(steps: Table) -> SeenSteps | None:
    """Return the steps whose phases are known, in the device's time if it is asynchronous.

    None without such a step.
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
    return {"joules": total_j * seen.unseen, "how": MEASURED, "interval": None, "reason": None}


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
            # Steps outside the windows are assumed to take the same power.
            beyond = sum(seen.phases[name]) / windowed_s * seen.unseen
            found[name] = {
                "joules": min(max(middle, low), high) * beyond,
                "how": ESTIMATED,
                "interval": [low * beyond, high * beyond],
                "reason": None,
            }
    return found


def _unknown(reason: str) -> PhaseEnergy:
    return {"joules": None, "how": None, "interval": None, "reason": reason}


def _windows(
    seen: SeenSteps, curve: Curve, age_s: float
) -> Iterator[tuple[dict[str, float], float]]:
    """Yield the time in each phase, and the joules, of each window between two readings.

    `age_s` is the assumed age of the readings. Windows with an evaluation or a step without detail
    are left out.
    """
    spent = ((read_s, _spent_until(seen, read_s - age_s)) for read_s in _edges(curve))
    for (read_s, before), (read_again_s, after) in pairwise(spent):
        times_s = {phase: after[phase] - before[phase] for phase in seen.phases}
        if sum(times_s.values()) >= _FILLED * (read_again_s - read_s):
            yield times_s, curve.at(read_again_s) - curve.at(read_s)


def _edges(curve: Curve) -> list[float]:
    """Return readings that are several periods apart."""
    least_s = max(_SEVERAL * (curve.period_s or 0.0), (curve.end_s - curve.start_s) / _MOST_WINDOWS)
    edges = [curve.start_s]
    for time_s in curve.times_s:
        if time_s - edges[-1] >= least_s:
            edges.append(time_s)
    return edges


def _spent_until(seen: SeenSteps, time_s: float) -> dict[str, float]:
    """Return the time in each phase up to a moment, cutting the step in progress."""
    place = max(0, bisect_right(seen.start_s, time_s) - 1)
    left_s = time_s - seen.start_s[place]
    spent = {}
    for phase, times_s in seen.phases.items():
        spent[phase] = seen.before_s[phase][place] + min(max(0.0, left_s), times_s[place])
        left_s -= times_s[place]
    return spent


_NOT_READ = "nobody read energy sensors during this run"
_NOT_ADDED = "phases are told of the domains that are added up"
_TOTAL = ""  # beside the names of domains, in the same mapping
_Phases = dict[str, PhaseEnergy]


@dataclass(frozen=True)
class _Read:
    """What the run folder records about energy, by sensor."""

    sensors: dict[str, EnergySensor]  # by name
    readings: dict[str, list[Reading]]
    curves: dict[str, Curve]
    domains: dict[str, Curve]
    contains: dict[str, list[str]]  # of domains that can be added up
    refresh_s: dict[str, float | None]  # by sensor, where it was observed

    def lag_s(self, domains: Sequence[str]) -> float:
        """Return the largest age of a reading of these domains: the sensor's period."""
        names = [name for name in self.curves if self.sensors[name]["domain"] in domains]
        lags_s = (self.refresh_s.get(name) or self.curves[name].period_s for name in names)
        return max(filter(None, lags_s), default=0.0)

    def sensor_of(self, domain: str) -> str:
        """Return the sensor of a domain; several are joined in their order."""
        return ", then ".join(
            name for name in self.curves if self.sensors[name]["domain"] == domain
        )


def energy_of(run: Run, summary: Summary) -> tuple[EnergyFigures | None, str]:
    """Return the energy figures, or None and the reason.

    `summary` has the run's other figures. `joules` is None where the domains read cannot be added
    up.
    """
    sensor_events = [event for event in run.events if event["event"] == "energy_sensors"]
    idle_events = [event for event in run.events if event["event"] == "energy_idle"]
    if run.spec.get("energy") == "off":
        return None, "not asked for: --energy auto"
    if not sensor_events:
        return None, _NOT_READ
    hosts = {rank["host"] for rank in summary.get("ranks") or ()}
    if len(hosts) > 1:
        return None, f"the ranks were on {len(hosts)} machines, and only one of them was read"
    if not any(event["sensors"] for event in sensor_events):
        return None, str(sensor_events[-1].get("reason") or _NOT_READ)
    read = _read(run, sensor_events, idle_events)
    if not read.domains:
        return None, "energy sensors answered, and none of them gave two readings that differ"
    total, stretches = add_up({name: read.domains[name] for name in read.contains}, read.contains)
    main = max(stretches, key=lambda each: each.to_s - each.from_s, default=None)
    covers = list(main.domains) if main else []
    # Those of a resume do not count: the machine is still warm then.
    idle = idle_events[0]["readings"] if idle_events else {}
    idle_w = _idle_w(idle, read)
    phases_of = _phases_of(run, read, covers, total, stretches)
    figures: EnergyFigures = {
        "joules": None,
        "sensors": [_about_sensor(name, read) for name in read.curves],
        "refused": {name: why for event in sensor_events for name, why in event["refused"].items()},
        "failed": [
            cast("EnergySensorFailure", {k: v for k, v in event.items() if k != "event"})
            for event in run.events
            if event["event"] == "energy_sensor_failed"
        ],
        "covers": covers,
        "leaves_out": left_out(covers, read.domains, read.contains),
        "covers_by_time": changes_of(stretches),
        "idle_w": _sum_known([idle_w.get(name) for name in covers]),
        "idle_lasted_s": max((each[-1][0] for each in idle.values() if each), default=None),
        "domains": {
            name: {
                "sensor": read.sensor_of(name),
                "idle_w": idle_w.get(name),
                **_of_curve(run, curve, phases_of.get(name)),
            }
            for name, curve in read.domains.items()
        },
    }
    if total is None:
        return figures, "what the rails feed is not known, so they are not added up"
    whole = _of_curve(run, total, phases_of.get(_TOTAL))
    joules, wall_s = whole["joules"], summary.get("wall_s")
    samples, accuracy = summary.get("samples"), summary.get("test_accuracy")
    resting_w = figures["idle_w"]
    return {
        **figures,
        **whole,
        "above_idle_j": None if resting_w is None else joules - resting_w * whole["covered_s"],
        "samples_per_j": samples / joules if samples and joules else None,
        "accuracy_per_j": accuracy / joules if accuracy is not None and joules else None,
        "accuracy_per_s": accuracy / wall_s if accuracy is not None and wall_s else None,
    }, ""


def _read(
    run: Run,
    sensor_events: Sequence[EnergySensorsEvent],
    idle_events: Sequence[EnergyIdleEvent],
) -> _Read:
    sensors = {each["name"]: each for event in sensor_events for each in event["sensors"]}
    readings: dict[str, list[Reading]] = defaultdict(list)
    table = run.energy
    columns = (table["time_s"], table["sensor"], table["energy_j"], table["power_w"])
    for time_s, name, energy_j, power_w in zip(*columns, strict=True):
        value = power_w if energy_j is None else energy_j
        if name in sensors and time_s is not None and value is not None:
            readings[name].append((time_s, value))
    away_s = [event["time_s"] for event in run.events if event["event"] == "resume"]
    curves: dict[str, Curve] = {}
    by_domain: dict[str, list[Curve]] = defaultdict(list)
    for name, about in sensors.items():
        curve = curve_of(readings[name], about["kind"], about["range_j"], away_s)
        if curve is not None:
            curves[name] = curve
            by_domain[about["domain"]].append(curve)
    domains = {domain: joined(several) for domain, several in by_domain.items()}
    contains = {
        about["domain"]: about["contains"]
        for about in sensors.values()
        if about["addable"] and about["domain"] in domains
    }
    refresh_s: dict[str, float | None] = {}
    for event in idle_events:
        refresh_s |= event.get("refresh_s") or {}
    return _Read(sensors, readings, curves, domains, contains, refresh_s)


def _about_sensor(name: str, read: _Read) -> EnergySensorFigures:
    about, curve = read.sensors[name], read.curves[name]
    return {
        "name": name,
        "domain": about["domain"],
        "kind": about["kind"],
        "period_s": curve.period_s,
        "refresh_s": read.refresh_s.get(name),
        "readings": len(read.readings[name]),
        "from_s": curve.start_s,
        "to_s": curve.end_s,
    }


def _of_curve(run: Run, curve: Curve, phases: _Phases | None) -> EnergyUse:
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
        "phases": phases,
    }


def _phases_of(
    run: Run, read: _Read, covers: Sequence[str], total: Curve | None, stretches: Sequence[Stretch]
) -> dict[str, _Phases]:
    """Return the joules of phases by domain, and of the total; empty without a step.

    A fit reads all steps, so only what is added up is fitted, or every domain where nothing can be
    added up. If one domain is the total, it is fitted once.
    """
    seen = seen_steps(run.steps)
    if seen is None:
        return {}
    in_one_piece = run.info.get("kind") != "trace" and run.spec.get("accumulate", 1) == 1

    def fit(curve: Curve, domains: Sequence[str]) -> _Phases:
        return joules_by_phase(seen, curve, read.lag_s(domains), in_one_piece=in_one_piece)

    found = {name: unknown_by_phase(seen, _NOT_ADDED) for name in read.domains}
    found |= {name: fit(read.domains[name], [name]) for name in covers or read.domains}
    if total is not None:
        one_is_all = len(covers) == 1 and {each.domains for each in stretches} == {tuple(covers)}
        found[_TOTAL] = found[covers[0]] if one_is_all else fit(total, covers)
    return found


def _idle_w(idle: Mapping[str, list[tuple[float, float]]], read: _Read) -> dict[str, float]:
    """Return the idle power of each domain, where it was read before the run."""
    found: dict[str, float] = {}
    for name, readings in idle.items():
        about = read.sensors[name]
        curve = curve_of([(t, v) for t, v in readings], about["kind"], about["range_j"])
        if curve is not None:
            found[about["domain"]] = curve.mean_w
    return found


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None

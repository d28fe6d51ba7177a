"""How many joules did a run take, each of its epochs and each of its phases?

From the folder alone: `energy.csv` has the readings as they came, and events say what the sensors
are, what the machine took before the run, and which sensor failed. Domains that contain one another
are never added up: the total takes the widest that were read, and says what it leaves out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.analyze.energy_coverage import changes_of, left_out
from stepscope.analyze.energy_curve import Curve, Reading, Stretch, add_up, curve_of, joined
from stepscope.analyze.energy_phases import joules_by_phase, seen_steps, unknown_by_phase
from stepscope.records.reader import Run

_NOT_READ = "nobody read energy sensors during this run"
_NOT_ADDED = "phases are told of the domains that are added up"
_TOTAL = ""  # beside the names of domains
_Phases = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Read:
    """What the folder says of energy, sensor by sensor."""

    sensors: dict[str, dict[str, Any]]  # by name, as `Sensor.describe` gave them
    readings: dict[str, list[Reading]]
    curves: dict[str, Curve]
    domains: dict[str, Curve]
    contains: dict[str, list[str]]  # of domains that may be added up
    refresh_s: dict[str, float]  # by sensor, where it was seen

    def lag_s(self, domains: Sequence[str]) -> float:
        """Return how old a reading of these domains may be: the sensor's own period."""
        names = [name for name in self.curves if self.sensors[name]["domain"] in domains]
        lags_s = (self.refresh_s.get(name) or self.curves[name].period_s for name in names)
        return max(filter(None, lags_s), default=0.0)

    def sensor_of(self, domain: str) -> str:
        """Name what measured a domain, in their order if there were several."""
        return ", then ".join(
            name for name in self.curves if self.sensors[name]["domain"] == domain
        )


def energy_of(run: Run, summary: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the figures of energy, or None and why there are none.

    `summary` has the run's other figures. `joules` may be None where only parts are known of which
    nobody can say how they go together.
    """
    told = _events(run, "energy_sensors")
    if run.spec.get("energy") == "off":
        return None, "not asked for: --energy auto"
    if not told:
        return None, _NOT_READ
    hosts = {rank["host"] for rank in summary.get("ranks") or ()}
    if len(hosts) > 1:
        return None, f"the ranks were on {len(hosts)} machines, and only one of them was read"
    if not any(event["sensors"] for event in told):
        return None, str(told[-1].get("reason") or _NOT_READ)
    read = _read(run, told)
    if not read.domains:
        return None, "energy sensors answered, and none of them gave two readings that differ"
    total, stretches = add_up({name: read.domains[name] for name in read.contains}, read.contains)
    main = max(stretches, key=lambda each: each.to_s - each.from_s, default=None)
    covers = list(main.domains) if main else []
    idle_w = _idle_w(run, read)
    phases_of = _phases_of(run, read, covers, total, stretches)
    figures = {
        "joules": None,
        "sensors": [_about_sensor(name, read) for name in read.curves],
        "refused": {name: why for event in told for name, why in event["refused"].items()},
        "failed": [_without_kind(event) for event in _events(run, "energy_sensor_failed")],
        "covers": covers,
        "leaves_out": left_out(covers, read.domains, read.contains),
        "covers_by_time": changes_of(stretches),
        "idle_w": _sum_known([idle_w.get(name) for name in covers]),
        "idle_lasted_s": _idle_lasted_s(run),
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
    figures |= _of_curve(run, total, phases_of.get(_TOTAL))
    figures |= _per_joule(summary, figures)
    return figures, ""


def _read(run: Run, told: Sequence[Mapping[str, Any]]) -> _Read:
    sensors = {each["name"]: each for event in told for each in event["sensors"]}
    readings: dict[str, list[Reading]] = defaultdict(list)
    table = run.energy
    columns = (table["time_s"], table["sensor"], table["energy_j"], table["power_w"])
    for time_s, name, energy_j, power_w in zip(*columns, strict=True):
        value = power_w if energy_j is None else energy_j
        if name in sensors and time_s is not None and value is not None:
            readings[name].append((time_s, value))
    away_s = [event["time_s"] for event in _events(run, "resume")]
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
    seen = [event.get("refresh_s") or {} for event in _events(run, "energy_idle")]
    refresh_s = {name: took_s for each in seen for name, took_s in each.items()}
    return _Read(sensors, readings, curves, domains, contains, refresh_s)


def _about_sensor(name: str, read: _Read) -> dict[str, Any]:
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


def _of_curve(run: Run, curve: Curve, phases: _Phases | None) -> dict[str, Any]:
    """Return what a curve says of the run and its epochs, beside its phases."""
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
            for row in run.epochs.rows()
            if row["start_s"] is not None and row["total_s"] is not None
        ],
        "phases": phases,
    }


def _phases_of(
    run: Run, read: _Read, covers: Sequence[str], total: Curve | None, stretches: Sequence[Stretch]
) -> dict[str, _Phases]:
    """Return the joules of phases by domain, and of the total; nothing where there is no step.

    A fit goes through all steps, so it is made for what is added up alone, or where nothing can be
    added up for all there is; and once where one domain is the total.
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


def _per_joule(summary: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a joule brought, beside what a second did."""
    joules, idle_w, wall_s = figures["joules"], figures["idle_w"], summary.get("wall_s")
    samples, accuracy = summary.get("samples"), summary.get("test_accuracy")
    above_j = None if idle_w is None else joules - idle_w * figures["covered_s"]
    return {
        "above_idle_j": above_j,
        "samples_per_j": samples / joules if samples and joules else None,
        "accuracy_per_j": accuracy / joules if accuracy is not None and joules else None,
        "accuracy_per_s": accuracy / wall_s if accuracy is not None and wall_s else None,
    }


def _idle_w(run: Run, read: _Read) -> dict[str, float]:
    """Return what each domain took before the run, where it was read then."""
    found: dict[str, float] = {}
    for event in _events(run, "energy_idle")[:1]:  # a resumed run finds the machine still warm
        for name, readings in event["readings"].items():
            about = read.sensors[name]
            curve = curve_of([(t, v) for t, v in readings], about["kind"], about["range_j"])
            if curve is not None:
                found[about["domain"]] = curve.mean_w
    return found


def _idle_lasted_s(run: Run) -> float | None:
    readings = [
        each for event in _events(run, "energy_idle")[:1] for each in event["readings"].values()
    ]
    return max((several[-1][0] for several in readings if several), default=None)


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _events(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events if event.get("event") == kind]


def _without_kind(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "event"}

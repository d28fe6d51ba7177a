"""From sensor readings to joules over time, as a curve that can be cut anywhere.

A counter is followed through its wraps, from one change to the next: between two changes it only
looks as if no energy was used. Power is integrated by trapezoids. Gaps, where a counter jumped or
the run was stopped, are bridged at the mean power of the rest; `bridged_s` says how long they were.
`add_up` makes the total of several domains, and `left_out` says what it does not cover.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepscope.records.energy_readings import EVERYTHING, STALL_S, grown_j, widest
from stepscope.records.types import CoveredTime
from stepscope.stats import median

Reading = tuple[float, float]  # time, value
_SLACK_PERIODS = 2.0
_LEAST_SLACK_S = 0.25  # one or two readings, at ten a second


@dataclass(frozen=True)
class Curve:
    """Joules since the first reading, linear between two points."""

    times_s: Sequence[float]
    joules: Sequence[float]
    period_s: float | None  # between two changes of the reading
    bridged_s: float = 0.0

    @property
    def start_s(self) -> float:
        """The time of the first reading."""
        return self.times_s[0]

    @property
    def end_s(self) -> float:
        """The time of the last reading."""
        return self.times_s[-1]

    @property
    def mean_w(self) -> float:
        """The mean power."""
        return self.joules[-1] / (self.end_s - self.start_s)

    def at(self, time_s: float) -> float:
        """Return the joules up to a time, extrapolated at the power of the nearest end."""
        place = min(max(bisect_right(self.times_s, time_s), 1), len(self.times_s) - 1)
        before_s, after_s = self.times_s[place - 1], self.times_s[place]
        before_j, after_j = self.joules[place - 1], self.joules[place]
        return before_j + (after_j - before_j) * (time_s - before_s) / (after_s - before_s)

    def between(self, from_s: float, to_s: float) -> float | None:
        """Return the joules between two times; None where the sensor was not read."""
        slack_s = max(_LEAST_SLACK_S, _SLACK_PERIODS * (self.period_s or 0.0))
        if from_s < self.start_s - slack_s or to_s > self.end_s + slack_s:
            return None
        return self.at(to_s) - self.at(from_s)


def curve_of(
    readings: Sequence[Reading],
    kind: str,
    range_j: float | None = None,
    away_s: Collection[float] = (),
) -> Curve | None:
    """Return the curve of one sensor; None if it has too few readings.

    `away_s` are the times at which the run was resumed: energy counted while it was stopped is not
    the run's.
    """
    ordered = _forward(readings)
    changed = _changes(ordered)
    gaps_s = [after[0] - before[0] for before, after in pairwise(changed[1:])]
    period_s = median(gaps_s) if gaps_s else None
    if kind == "counter":
        ordered = changed + _tail(ordered, changed, period_s)
    pieces = list(_pieces(ordered, kind, range_j, away_s))
    known_s = sum(to_s - from_s for from_s, to_s, joules in pieces if joules is not None)
    if not known_s or (kind == "counter" and len(changed) < 2):
        return None
    mean_w = sum(joules for _, _, joules in pieces if joules is not None) / known_s
    times_s, joules_so_far, bridged_s = [pieces[0][0]], [0.0], 0.0
    for from_s, to_s, joules in pieces:
        if joules is None:
            joules = mean_w * (to_s - from_s)
            bridged_s += to_s - from_s
        times_s.append(to_s)
        joules_so_far.append(joules_so_far[-1] + joules)
    return Curve(times_s, joules_so_far, period_s, bridged_s)


def _forward(readings: Sequence[Reading]) -> list[Reading]:
    """Drop readings whose times a resumed run repeated."""
    kept: list[Reading] = []
    for reading in readings:
        while kept and kept[-1][0] >= reading[0]:
            kept.pop()
        kept.append(reading)
    return kept


def _changes(readings: Sequence[Reading]) -> list[Reading]:
    """Return the first reading, and each that differs from its predecessor."""
    differing = [after for before, after in pairwise(readings) if after[1] != before[1]]
    return [*readings[:1], *differing]


def _tail(
    readings: Sequence[Reading], changed: Sequence[Reading], period_s: float | None
) -> list[Reading]:
    """Return the last reading if it lies after the last change, unless the counter stalled."""
    if not readings or readings[-1][0] <= changed[-1][0]:
        return []
    still_s = readings[-1][0] - changed[-1][0]
    stalled = still_s >= max(STALL_S, 5 * (period_s or 0.0))
    return [] if stalled else [readings[-1]]


def _pieces(
    readings: Sequence[Reading], kind: str, range_j: float | None, away_s: Collection[float]
) -> Iterator[tuple[float, float, float | None]]:
    """Yield the joules from each reading to the next; None where they are unknown."""
    for (from_s, before), (to_s, after) in pairwise(readings):
        took_s = to_s - from_s
        if took_s <= 0:
            continue
        if any(from_s < back_s <= to_s for back_s in away_s):
            yield from_s, to_s, None
        elif kind == "power":
            yield from_s, to_s, (before + after) / 2 * took_s
        else:
            # Only the tail has no growth: its next change had not come yet.
            yield from_s, to_s, grown_j(before, after, took_s, range_j) or None


def joined(curves: Sequence[Curve]) -> Curve:
    """Join the curves of sensors that replaced each other in one domain."""
    first, *others = sorted(curves, key=lambda curve: curve.start_s)
    times_s, joules, bridged_s = list(first.times_s), list(first.joules), first.bridged_s
    for other in others:
        later = [place for place, time_s in enumerate(other.times_s) if time_s > times_s[-1]]
        if not later:
            continue
        begins_s = max(other.start_s, times_s[-1])
        between_s = begins_s - times_s[-1]
        bridged_s += between_s + other.bridged_s
        offset = joules[-1] + between_s * other.mean_w - other.at(begins_s)
        if between_s > 0:
            times_s.append(begins_s)
            joules.append(offset + other.at(begins_s))
        later = [place for place in later if other.times_s[place] > times_s[-1]]
        times_s += [other.times_s[place] for place in later]
        joules += [offset + other.joules[place] for place in later]
    periods = [curve.period_s for curve in curves if curve.period_s is not None]
    return Curve(times_s, joules, max(periods, default=None), bridged_s)


# --- The total of several domains


@dataclass(frozen=True)
class Stretch:
    """An interval of time in which the same domains were added up."""

    from_s: float
    to_s: float
    domains: tuple[str, ...]


def add_up(
    curves: Mapping[str, Curve], contains: Mapping[str, Collection[str]]
) -> tuple[Curve | None, list[Stretch]]:
    """Add the widest domains that were read at each time; return the sum and its stretches."""
    edges = sorted({edge for curve in curves.values() for edge in (curve.start_s, curve.end_s)})
    times_s, joules = edges[:1], [0.0]
    stretches: list[Stretch] = []
    for from_s, to_s in pairwise(edges):
        alive = [
            name for name, each in curves.items() if each.start_s <= from_s and each.end_s >= to_s
        ]
        taken = widest({name: contains[name] for name in alive})
        inside = {t for name in taken for t in curves[name].times_s if from_s < t < to_s}
        begun_j = joules[-1]
        for time_s in [*sorted(inside), to_s]:
            times_s.append(time_s)
            grown = (curves[name].at(time_s) - curves[name].at(from_s) for name in taken)
            joules.append(begun_j + sum(grown))
        stretches.append(Stretch(from_s, to_s, tuple(taken)))
    added = {name for stretch in stretches for name in stretch.domains}
    if not added:
        return None, []
    bridged_s = max(curves[name].bridged_s for name in added)
    period_s = max(curves[name].period_s or 0.0 for name in added) or None
    return Curve(times_s, joules, period_s, bridged_s), stretches


_LEAST_STRETCH = 0.01  # share of the time
# Names of domains; several of a kind are numbered: `battery 2`, `package-1`.
_WHOLE_MACHINE = ("battery", "machine")
_GPUS = ("gpu", "apu")
_PROCESSORS = ("package", "apu")
_OF_A_MODULE = "what is not behind the module's input: parts of the carrier board, the power supply"
_OF_PSYS = "what the maker did not wire to psys; a GPU may be in it, and is not added"
_OF_PARTS = "the rest of the machine: storage, network, fans, losses of the power supply"


def left_out(
    covers: Sequence[str], domains: Collection[str], contains: Mapping[str, Collection[str]]
) -> list[str]:
    """Return a sentence on what a total of domains leaves out.

    `domains` are all that were read; `contains` lists what the addable ones contain.
    """
    said = [f"{name}: what it feeds is not known" for name in domains if name not in contains]
    everything = [name for name in covers if EVERYTHING in contains[name]]
    if not covers or any(name.startswith(_WHOLE_MACHINE) for name in everything):
        return said
    if "psys" in everything:
        return [*said, _OF_PSYS]
    if everything:
        return [*said, _OF_A_MODULE]
    if not any(name.lower().startswith(_GPUS) for name in covers):
        said.append("a GPU, where there is one")
    of_processor = any(name.startswith(_PROCESSORS) for name in covers)
    if of_processor and not any("dram" in name for name in covers):
        said.append("memory")
    if all(name.startswith("gpu") for name in covers):
        said.append("the CPU and its memory")
    return [*said, _OF_PARTS]


def changes_of(stretches: Sequence[Stretch]) -> list[CoveredTime]:
    """List which domains were added when; empty if that never changed."""
    all_s = sum(each.to_s - each.from_s for each in stretches)
    long = [each for each in stretches if each.to_s - each.from_s >= _LEAST_STRETCH * all_s]
    if len({each.domains for each in long}) < 2:
        return []
    return [
        {"from_s": each.from_s, "to_s": each.to_s, "domains": list(each.domains)} for each in long
    ]

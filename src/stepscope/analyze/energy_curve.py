"""From sensor readings to joules over time, as a curve that can be cut anywhere.

A counter is followed through its wraps, from one change to the next. Power is integrated by
trapezoids. Gaps, where a counter jumped or the run was stopped, are bridged at the mean power.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepscope.records.energy_readings import STALL_S, grown_j
from stepscope.records.types import EVERYTHING
from stepscope.stats.intervals import median

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

    `away_s` are the times at which the run was resumed: energy used before is not the run's.
    """
    ordered: list[Reading] = []
    for reading in readings:
        while ordered and ordered[-1][0] >= reading[0]:  # a resumed run repeats times
            ordered.pop()
        ordered.append(reading)
    differing = [after for before, after in pairwise(ordered) if after[1] != before[1]]
    changed = [*ordered[:1], *differing]
    gaps_s = [after[0] - before[0] for before, after in pairwise(changed[1:])]
    period_s = median(gaps_s) if gaps_s else None
    if kind == "counter":
        # The readings after the last change, unless the counter stalled.
        tail = [each for each in ordered[-1:] if each[0] > changed[-1][0]]
        stalled_s = max(STALL_S, 5 * (period_s or 0.0))
        ordered = changed + [each for each in tail if each[0] - changed[-1][0] < stalled_s]
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


def add_up(curves: Sequence[Curve]) -> Curve:
    """Return the sum of curves over the time that all of them cover."""
    if len(curves) == 1:
        return curves[0]
    start_s, end_s = max(each.start_s for each in curves), min(each.end_s for each in curves)
    inside = {t for each in curves for t in each.times_s if start_s < t < end_s}
    times_s = [start_s, *sorted(inside), end_s]
    joules = [sum(each.at(t) - each.at(start_s) for each in curves) for t in times_s]
    period_s = max(each.period_s or 0.0 for each in curves) or None
    return Curve(times_s, joules, period_s, max(each.bridged_s for each in curves))


# --- What a total leaves out


# Names of domains; several of a kind are numbered: `battery 2`, `package-1`.
_WHOLE_MACHINE = ("battery", "machine")
_GPUS = ("gpu", "apu")
_PROCESSORS = ("package", "apu")
_OF_A_MODULE = "what the module's input does not supply: the carrier board, the power supply"
_OF_PSYS = "what the manufacturer did not connect to psys; a GPU may be included and is not added"
_OF_PARTS = "the rest of the machine: storage, network, fans, losses of the power supply"


def left_out(
    covers: Sequence[str], domains: Collection[str], contains: Mapping[str, Collection[str]]
) -> list[str]:
    """Return what a total of some `domains` leaves out; `contains` describes the addable ones."""
    missing = [f"{name}: what it supplies is unknown" for name in domains if name not in contains]
    everything = [name for name in covers if EVERYTHING in contains[name]]
    if not covers or any(name.startswith(_WHOLE_MACHINE) for name in everything):
        return missing
    if everything:
        return [*missing, _OF_PSYS if "psys" in everything else _OF_A_MODULE]
    if not any(name.lower().startswith(_GPUS) for name in covers):
        missing.append("any GPU")
    of_processor = any(name.startswith(_PROCESSORS) for name in covers)
    if of_processor and not any("dram" in name for name in covers):
        missing.append("memory")
    if all(name.startswith("gpu") for name in covers):
        missing.append("the CPU and its memory")
    return [*missing, _OF_PARTS]

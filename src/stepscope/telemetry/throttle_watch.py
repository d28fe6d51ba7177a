"""Detection of throttling: temperatures that rise, clocks that fall.

Each kind is recorded when it begins and when it is over. A clock that falls while the training is
idle, or because more CPUs share a turbo, is not throttling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stepscope.hardware import cpu_clock, thermal
from stepscope.hardware.cpu_clock import mhz_of
from stepscope.hardware.gpu import POWER_CAP, DeviceFigures
from stepscope.hardware.thermal import Zone
from stepscope.telemetry.energy_sampler import RecordEvent

# What an event has of the readings.
Figures = Mapping[str, float | str | None]

_CHECKS = 3  # consecutive checks before a clock has fallen, or throttling is over
_FALLEN = 0.8  # of the best clock held before: turbo differences are smaller
_BUSY = 0.7  # of one CPU: below, a governor lowers the clock of an idle CPU
_MORE = 1.5  # times the busy CPUs: another turbo applies
_NEAR_TRIP_C = 1.0
_NO_TRIP_C = 90.0  # the limit of a zone without a trip point


class _ClockWatch(NamedTuple):
    """The fastest clock at one check, and the number of CPUs that the training kept busy."""

    time_s: float
    mhz: float
    busy_cpus: float


@dataclass
class _Ongoing:
    """Throttling that has begun, and the checks without it since."""

    began_s: float
    quiet: int = 0
    quiet_from_s: float = 0.0


@dataclass
class Throttling:
    """Earlier readings, and the throttling in progress."""

    root: Path
    record_event: RecordEvent
    _ongoing: dict[str, _Ongoing] = field(default_factory=dict)
    _clocks: deque[_ClockWatch] = field(default_factory=lambda: deque(maxlen=_CHECKS))
    _best: _ClockWatch | None = None  # for the current number of busy CPUs
    _best_device_mhz: float = 0.0
    _first_c: dict[Zone, float] = field(default_factory=dict)
    _announced: bool = False  # `throttling_watched` was recorded

    def __post_init__(self) -> None:
        # Find the files once: searching takes longer than reading.
        policies = cpu_clock.policies(self.root)
        self._clock_files = [policy / "scaling_cur_freq" for policy in policies]
        self._limit_files = [policy / "scaling_max_freq" for policy in policies]
        self._counts = thermal.find_throttle_counts(self.root)
        self._count = thermal.sum_throttle_counts(self._counts)
        self._limit_mhz = _mean(mhz_of(self._limit_files))

    def check(
        self,
        time_s: float,
        busy_cpus: float | None,
        heat_c: Mapping[Zone, float],
        device: DeviceFigures,
    ) -> None:
        """Compare current readings with earlier ones. `busy_cpus` is the training's CPU use."""
        if not self._announced:
            self._record_watched(time_s, heat_c, device)
        self._check_heat(time_s, heat_c)
        self._check_count(time_s)
        self._check_limit(time_s)
        self._check_clock(time_s, busy_cpus)
        self._check_device(time_s, device)

    def _record_watched(
        self, time_s: float, heat_c: Mapping[Zone, float], device: DeviceFigures
    ) -> None:
        readable = {
            "temperature": bool(heat_c),
            "throttle count": self._count is not None,
            "clock limit": self._limit_mhz is not None,
            "clock": bool(mhz_of(self._clock_files)),
            "device held back": device.held_back_by is not None,
        }
        self._announced = True
        watched = [what for what, is_readable in readable.items() if is_readable]
        self.record_event("throttling_watched", time_s, what=watched)

    def _check_heat(self, time_s: float, heat_c: Mapping[Zone, float]) -> None:
        """Compare each zone with its trip point, and record the one nearest to it."""
        if not heat_c:
            return
        self._first_c = {**heat_c, **self._first_c}
        zone = max(heat_c, key=lambda each: heat_c[each] - _limit_c(each))
        now_c, limit_c = heat_c[zone], _limit_c(zone)
        hot = now_c >= limit_c - _NEAR_TRIP_C
        figures: Figures = {"from": self._first_c[zone], "to": now_c, "unit": "°C"}
        figures = {**figures, "limit": limit_c, "zone": zone.kind}
        self._set("temperature", hot, time_s, figures)

    def _check_count(self, time_s: float) -> None:
        count, before = thermal.sum_throttle_counts(self._counts), self._count
        if count is not None:
            self._count = count
            grown = before is not None and count > before
            self._set("throttle count", grown, time_s, {"from": before, "to": count})

    def _check_limit(self, time_s: float) -> None:
        limit_mhz = _mean(mhz_of(self._limit_files))
        if limit_mhz is None or self._limit_mhz is None:
            return
        figures: Figures = {"from": self._limit_mhz, "to": limit_mhz, "unit": "MHz"}
        self._set("clock limit", limit_mhz < self._limit_mhz, time_s, figures)

    def _check_clock(self, time_s: float, busy_cpus: float | None) -> None:
        mhz = max(mhz_of(self._clock_files), default=None)
        if mhz is None or busy_cpus is None or busy_cpus < _BUSY:
            self._clocks.clear()
            return
        self._clocks.append(_ClockWatch(time_s, mhz, busy_cpus))
        if len(self._clocks) < _CHECKS:
            return
        self._best = best = _better(self._best, self._clocks)
        figures: Figures = {"from": best.mhz, "to": mhz, "unit": "MHz"}
        if all(clock.mhz < _FALLEN * best.mhz for clock in self._clocks):
            self._set("clock", True, self._clocks[0].time_s, figures)
        elif mhz >= _FALLEN * best.mhz:
            self._set("clock", False, time_s, figures)

    def _check_device(self, time_s: float, device: DeviceFigures) -> None:
        if device.held_back_by is None:
            return
        if device.mhz is not None:
            self._best_device_mhz = max(self._best_device_mhz, device.mhz)
        # At its power cap a GPU works as designed, unless that costs much of its clock.
        fallen = device.mhz is None or device.mhz < _FALLEN * self._best_device_mhz
        named = [each for each in device.held_back_by if fallen or each != POWER_CAP]
        reasons = ", ".join(named)
        if reasons and device.index is not None:
            reasons += f" (GPU {device.index})"
        figures: Figures = {"reasons": reasons, "to": device.mhz}
        self._set("device held back", bool(reasons), time_s, figures)

    def _set(self, what: str, now: bool, time_s: float, figures: Figures) -> None:
        ongoing = self._ongoing.get(what)
        if now and ongoing is None:
            self._ongoing[what] = _Ongoing(time_s)
            self.record_event("throttling", time_s, what=what, **figures)
        elif now and ongoing is not None:
            ongoing.quiet = 0
        elif ongoing is not None:
            ongoing.quiet += 1
            if ongoing.quiet == 1:
                ongoing.quiet_from_s = time_s
            if ongoing.quiet >= _CHECKS:
                del self._ongoing[what]
                lasted_s = round(ongoing.quiet_from_s - ongoing.began_s, 3)
                ended_s = ongoing.quiet_from_s
                self.record_event("throttling_ended", ended_s, what=what, lasted_s=lasted_s)


def _better(best: _ClockWatch | None, held: Sequence[_ClockWatch]) -> _ClockWatch:
    """Return the best clock that was held while about as many CPUs were busy as now."""
    lowest = min(held, key=lambda clock: clock.mhz)
    busy_cpus = min(clock.busy_cpus for clock in held)
    if best is None or busy_cpus > _MORE * best.busy_cpus:
        return lowest._replace(busy_cpus=busy_cpus)
    if busy_cpus * _MORE < best.busy_cpus or lowest.mhz <= best.mhz:
        return best
    return lowest._replace(busy_cpus=best.busy_cpus)


def _limit_c(zone: Zone) -> float:
    return _NO_TRIP_C if zone.trip_c is None else zone.trip_c


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean: for the highest clocks allowed, it falls when one CPU's is lowered."""
    return sum(values) / len(values) if values else None

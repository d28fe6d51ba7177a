"""The processor's counters by phase, in a few steps of a run.

A reading takes some microseconds, so these steps are excluded from the times of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stepscope.hardware.perf_events import CounterReading
from stepscope.meter.step_meter import StepMeter
from stepscope.records import schema
from stepscope.records.types import PhaseCounters

Readings = Mapping[str, CounterReading]


@dataclass(slots=True)
class CounterWindow:
    """Read counters at the laps of a meter while the window is open."""

    read: Callable[[], Readings]
    meter: StepMeter
    _before: Readings = field(default_factory=dict)
    _by_phase: dict[int, list[tuple[Readings, Readings]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def open(self) -> None:
        """Start reading."""
        self._before = self.read()
        self.meter.on_lap = self._lap

    def close(self) -> None:
        """Stop reading."""
        self.meter.on_lap = None

    def _lap(self, phase: int) -> None:
        now = self.read()
        self._by_phase[phase].append((self._before, now))
        self._before = now

    def counts(self, steps: int, absent: Mapping[str, str]) -> PhaseCounters:
        """Return the mean counts per step in each phase; `absent` explains missing counters."""
        phases: dict[str, dict[str, float | None]] = {}
        for phase, pairs in sorted(self._by_phase.items()):
            found = {
                name: _counted([(one[name], other[name]) for one, other in pairs], steps)
                for name in pairs[0][0]
            }
            cycles, instructions = found.get("cycles"), found.get("instructions")
            if cycles and instructions is not None:
                found["instructions_per_cycle"] = instructions / cycles
            phases[schema.PHASES[phase]] = found
        return {"steps": steps, "absent": dict(absent), "phases": phases}


def _counted(pairs: list[tuple[CounterReading, CounterReading]], steps: int) -> float | None:
    """Scale a count to the enabled time; None if the counter never ran."""
    count = sum(after.counted - before.counted for before, after in pairs)
    enabled_ns = sum(after.enabled_ns - before.enabled_ns for before, after in pairs)
    running_ns = sum(after.running_ns - before.running_ns for before, after in pairs)
    return count * (enabled_ns / running_ns) / steps if running_ns else None

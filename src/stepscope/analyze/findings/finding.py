"""A finding, and the view of a run that findings are made from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any, cast

from stepscope.analyze.phase_shares import counted_steps, dropped_epochs_of, phase_shares
from stepscope.analyze.what_binds import binding_steps
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import (
    DeviceTime,
    EpochRow,
    FindingRecord,
    PhaseTime,
    RecordedSpec,
    ScriptCall,
)
from stepscope.stats.intervals import known_mean, median
from stepscope.units import format_duration, format_path

# The least share of the wall time that makes a saving worth a finding, and more important than any
# finding that saves nothing.
WORTHWHILE = 0.02


@dataclass(frozen=True)
class Finding:
    """A conclusion, its evidence, and the command that would check or fix it.

    `weight` is the share of the run's time that it concerns, or of the figures that it puts in
    doubt. `change` is what to do, and `saves_s` what that would take off the run's wall time.
    """

    name: str
    text: str
    evidence: tuple[str, ...]
    command: str | None = None
    weight: float = 0.0
    saves_s: float | None = None
    change: str | None = None

    def to_json(self) -> FindingRecord:
        """Return the finding as plain values."""
        return cast("FindingRecord", asdict(self))


@dataclass(frozen=True)
class RunView:
    """A run, and its steps of full detail outside the dropped epochs.

    With an asynchronous device, the phases are in the time by which they delay the training.
    """

    run: Run
    _columns: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    @property
    def on_cpu(self) -> bool:
        """Whether the device that trained is the CPU."""
        device = (self.run.info.get("environment") or {}).get("device") or "cpu"
        return device.startswith("cpu")

    @cached_property
    def trained(self) -> list[EpochRow]:
        """The epochs of training."""
        return self.run.epoch_rows("train")

    @cached_property
    def evaluations(self) -> list[EpochRow]:
        """The evaluations that were timed."""
        return [row for row in self.run.epoch_rows() if row["split"] != "train" and row["total_s"]]

    @cached_property
    def dropped(self) -> list[int]:
        """The epochs that are excluded."""
        return dropped_epochs_of(self.run)

    @cached_property
    def _kept(self) -> list[bool]:
        return counted_steps(self.run.steps, self.dropped)

    @cached_property
    def _phases(self) -> dict[str, PhaseTime]:
        return phase_shares(self._steps, self.dropped) or {}

    @cached_property
    def _steps(self) -> Table:
        return binding_steps(self.run.steps)

    def column(self, name: str) -> list[Any]:
        """Return a column of those steps, cached: a run may have a million."""
        if name not in self._columns:
            self._columns[name] = list(compress(self._steps[name], self._kept))
        return self._columns[name]

    @cached_property
    def throttled(self) -> list[bool | None]:
        """Whether each of those steps was throttled."""
        return list(compress(self.run.throttled, self._kept))

    @cached_property
    def step_s(self) -> list[float]:
        """The duration of each of those steps."""
        return self.column("step_s")

    @cached_property
    def median_s(self) -> float:
        """The median duration of a step."""
        return median(self.step_s)

    def mean(self, name: str) -> float | None:
        """Return the mean of a column over the steps that record it."""
        return known_mean(self.column(name))

    def mean_s(self, *phases: str) -> float:
        """Return the mean time of phases in a step."""
        return sum(self.mean(f"{phase}_s") or 0.0 for phase in phases)

    def all_steps_s(self, *phases: str) -> float:
        """Return the time of phases in all steps."""
        return self.mean_s(*phases) * len(self.run.steps)

    def of_a_step(self, took_s: float | None) -> str:
        """Describe a part of a step: `3 ms of a step of 12 ms`."""
        return f"{format_duration(took_s or 0.0)} of a step of {format_duration(self.mean_step_s)}"

    @property
    def mean_step_s(self) -> float:
        """The mean duration of a step."""
        return sum(self.step_s) / len(self.step_s) if self.step_s else 0.0

    def idle_device_s(self, *reasons: str) -> float | None:
        """Return how long an asynchronous device idled for any of these; None without one.

        The reasons are those of `waits` in `summary.device`.
        """
        waits = self.device.get("waits") if self.device else None
        if waits is None:
            return None
        share = sum(waits[reason] for reason in reasons)
        return share * self.mean_step_s * len(self.run.steps)

    @property
    def device(self) -> DeviceTime | None:
        """The figures of an asynchronous device."""
        return self.run.summary.get("device")

    def share(self, phase: str) -> float:
        """Return a phase's share of the time of those steps."""
        return self._phases[phase]["share"]

    @cached_property
    def workers(self) -> int | None:
        """The number of loader workers; None if unknown."""
        if self.run.info.get("kind") != "trace":
            found = self.run.spec.get("workers")
            return None if found is None else int(found)
        seen = {worker for worker in self.column("load_worker") if worker is not None}
        return len(seen - {-1}) if seen else None

    def again(self, command: str, *flags: str) -> str:
        """Return the command line that runs another command on the same training."""
        if self.run.info.get("kind") == "trace":
            script = ["--", *script_call(self.run.spec)]
            return shlex.join(["stepscope", command, *flags, *script])
        return shlex.join(["stepscope", command, format_path(self.run.path / schema.RUN), *flags])


def saving(
    view: RunView,
    name: str,
    text: str,
    *evidence: str,
    saves_s: float,
    change: str,
    least: float = WORTHWHILE,
) -> Finding | None:
    """Return a finding if its change saves enough of the wall time."""
    wall_s = view.run.summary.get("wall_s")
    if not wall_s or saves_s < least * wall_s:
        return None
    weight = min(1.0, saves_s / wall_s)
    return Finding(name, text, evidence, weight=weight, saves_s=saves_s, change=change)


def script_call(recorded: RecordedSpec | ScriptCall) -> list[str]:
    """Return the script and the arguments with which it was called."""
    module, script = recorded.get("module"), recorded.get("script")
    arguments = cast("Sequence[str]", recorded.get("arguments") or ())
    return [*(("-m", str(module)) if module else (str(script),)), *map(str, arguments)]

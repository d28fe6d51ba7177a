"""Watch the memory of what is supervised, and do what the rule in `memory_guard` asks for.

A look is cheap: the resident size of the training now, and what was last known of everything
else, which is read with the telemetry. The parent shares its cores with the training.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from stepscope.errors import MachineError
from stepscope.experiments.fork_server import ChildProcess
from stepscope.experiments.memory_guard import Action, Limits, Pool, Reading, decide
from stepscope.experiments.memory_limit import MemoryLimit
from stepscope.hardware import control_group, host
from stepscope.hardware.processes import TreeReading, resident_bytes, youngest_child
from stepscope.measure.clock import now_ns, seconds
from stepscope.measure.telemetry import Sampler
from stepscope.records.folder import RunFolder
from stepscope.units import format_bytes

# A training that allocates takes a gigabyte or so a second: 50 MiB between two looks at a limit.
_LOOK_AT_LIMIT_EVERY_S = 0.05
_LOOK_AT_MACHINE_EVERY_S = 0.1
_LOOK_AT_SCRIPT_EVERY_S = 1.0


@dataclass
class MemoryWatch:
    """The memory of one process tree, from its start to its end.

    `has_workers`: its children load data, and it goes on without them. `may_end`: it is ours to
    end; of somebody's own script we only say that memory runs short. `unified`: what it holds of
    its device is the host's memory too.
    """

    folder: RunFolder
    child: ChildProcess
    sampler: Sampler
    say: Callable[[str], None]
    limit: MemoryLimit | None = None
    has_workers: bool = False
    may_end: bool = True
    unified: bool = False
    killed: bool = False
    workers_ended: int = 0

    # What the last look saw, and the reading that last made us do something.
    seen: Reading = field(default_factory=lambda: Reading(0))
    cause: Reading | None = None

    _limits: Limits = field(default_factory=Limits)
    _total_bytes: int = 0
    _around: dict[Path, int] = field(default_factory=dict)  # limited groups that we are in
    _container: tuple[Pool, ...] = ()
    _workers: int = 0
    _swap_bytes: int = 0
    _swap_growth_bytes: int = 0
    _pressure_percent: float | None = None
    _acted_at: float | None = None
    _asked_at: float | None = None
    _kills_before: int | None = None

    def __post_init__(self) -> None:
        self._limits = Limits(self.limit.limit_bytes if self.limit else None)
        self._total_bytes = host.memory_bytes()
        self._around = control_group.limited()
        self._kills_before = self._count_kills()

    @property
    def look_every_s(self) -> float:
        """How often to look."""
        if not self.may_end:
            return _LOOK_AT_SCRIPT_EVERY_S
        return _LOOK_AT_MACHINE_EVERY_S if self.limit is None else _LOOK_AT_LIMIT_EVERY_S

    @property
    def asked(self) -> bool:
        """Whether the training was asked to end between two steps."""
        return self._asked_at is not None

    def begin(self) -> None:
        """Put into the record who holds the limit."""
        if self.limit is not None:
            held = {"held_by": self.limit.held_by, "reason": self.limit.reason}
            self._add_event("memory_limit", limit_bytes=self.limit.limit_bytes, **held)

    def take(self, tree: TreeReading) -> None:
        """Keep what a full reading tells, for the looks until the next one."""
        self._workers = tree.workers if self.has_workers else 0
        if tree.swap_bytes is not None:
            self._swap_growth_bytes = tree.swap_bytes - self._swap_bytes
            self._swap_bytes = tree.swap_bytes
        self._pressure_percent = self.sampler.memory_pressure_percent
        tightest = control_group.tightest(self._around)
        self._container = () if tightest is None else (Pool("container", *tightest),)

    def look(self) -> None:
        """Look at the memory once, and act if need be."""
        used_bytes = self._used_bytes()
        if used_bytes is None or self.killed:
            return
        now = time.monotonic()
        machine = Pool("machine", self._total_bytes, host.available_bytes())
        self.seen = Reading(
            used_bytes,
            pools=(machine, *self._container),
            workers=self._workers,
            workers_bytes=self.sampler.others_bytes if self._workers else 0,
            swap_growth_bytes=self._swap_growth_bytes,
            pressure_percent=self._pressure_percent,
            acted_s=None if self._acted_at is None else now - self._acted_at,
            asked_s=None if self._asked_at is None else now - self._asked_at,
        )
        action = decide(self.seen, self._limits)
        if action is not Action.NOTHING:
            self._act(action, now)

    def kernel_killed(self) -> bool:
        """Say whether the kernel has killed anything here for want of memory since the start."""
        kills = self._count_kills()
        return kills is not None and kills != self._kills_before

    def end(self) -> None:
        """Put into the record how memory stood at the end of a run that it ended."""
        self._note("ended", self.seen)

    def what_happened(self) -> str:
        """Say in words why the rule ended the run."""
        cause = self.cause or self.seen
        used = format_bytes(cause.used_bytes)
        limit = self._limits.limit_bytes
        if limit is not None and cause.used_bytes > limit:
            return f"the run took {used}, over its limit of {format_bytes(limit)}"
        if limit is not None and cause.used_bytes > self._limits.near_share * limit:
            return f"the run took {used}, near its limit of {format_bytes(limit)}"
        pool = min(cause.pools, key=lambda pool: pool.available_bytes / pool.total_bytes)
        left = f"{format_bytes(pool.available_bytes)} of {format_bytes(pool.total_bytes)}"
        said = f"the run took {used}, and {left} were left in this {pool.name}"
        return f"{said}; it was being swapped" if cause.swap_growth_bytes > 0 else said

    def _used_bytes(self) -> int | None:
        """Return what the run holds of the host's memory, a device's part of it included."""
        of_processes = self._bytes_of_processes()
        on_device = self.sampler.device_memory_bytes if self.unified else None
        return None if of_processes is None else of_processes + (on_device or 0)

    def _bytes_of_processes(self) -> int | None:
        if self.limit is not None and self.limit.group is not None:
            return self.limit.group.used_bytes()
        resident = resident_bytes(self.sampler.process)
        if resident is None:
            return None
        self.sampler.glimpsed(resident)
        return resident + self.sampler.others_bytes + self._swap_bytes

    def _count_kills(self) -> int | None:
        if self.limit is not None and self.limit.group is not None:
            return self.limit.group.kills()
        return host.oom_kills()

    def _act(self, action: Action, now: float) -> None:
        if not self.may_end:
            self._warn()
            return
        if action is Action.END_WORKER and not self._end_worker():
            action = Action.ASK
        if action is Action.KILL:
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
        elif action is Action.ASK:
            self._asked_at = now
            self.child.send_signal(signal.SIGUSR1)
            self.say("memory runs short: ending after this step")
        self._acted_at, self.cause = now, self.seen
        self._note(action.value, self.seen)

    def _end_worker(self) -> bool:
        worker = youngest_child(self.sampler.process)
        if worker is None:
            return False
        with contextlib.suppress(psutil.Error):  # it has just ended by itself
            worker.kill()
        self.workers_ended += 1
        self.say("memory runs short: one loader worker was ended")
        return True

    def _warn(self) -> None:
        if self.cause is None:
            self.cause = self.seen
            self._note("warned", self.seen)
            self.say(f"stepscope: warning: memory runs short: {self.what_happened()}")

    def _note(self, action: str, reading: Reading) -> None:
        self._add_event("memory_guard", action=action, **self._figures(reading))

    def _figures(self, reading: Reading) -> dict[str, Any]:
        left = min((pool.available_bytes for pool in reading.pools), default=None)
        return {
            "used_bytes": reading.used_bytes,
            "limit_bytes": self._limits.limit_bytes,
            "available_bytes": left,
            "workers": reading.workers,
        }

    def _add_event(self, kind: str, **detail: Any) -> None:
        with contextlib.suppress(MachineError):  # the disk is full: the telemetry finds out too
            elapsed_s = seconds(now_ns() - self.sampler.origin_ns)
            self.folder.add_event(kind, elapsed_s, **detail)

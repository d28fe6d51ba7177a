"""What to do about the memory of a run: a rule without state, from one reading to one action.

    near its own limit or over it only with its workers, or its pool nearly empty, or it is swapped
        it has loader workers   -> end the youngest, pause, check again
        it has none             -> ask it to end between two steps, with a checkpoint
    over its limit even without them, or its pool emptier still, or swapped long after the request
                                -> kill it

A pool is the memory of the machine or of a container. A pool ends a run only if the run holds more
than half of what is in use there: another process's short peak never ends a small run.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from stepscope.errors import MachineError
from stepscope.hardware import cgroup, host
from stepscope.hardware.cgroup import ControlGroup
from stepscope.hardware.process import TreeReading, resident_bytes, youngest_child
from stepscope.meter.clock import now_ns, seconds
from stepscope.records.run_folder import RunFolder
from stepscope.supervisor.warm_start import ChildProcess
from stepscope.telemetry.telemetry_sampler import Sampler
from stepscope.units import format_bytes


class Action(enum.Enum):
    """What to do; the values are those in `events.jsonl`."""

    NOTHING = "nothing"
    END_WORKER = "worker_ended"
    ASK = "asked_to_end"
    KILL = "killed"


# Of a limit. What is left, 100 MiB of 2 GiB, is room for a checkpoint.
NEAR_SHARE = 0.95
# Of a pool. About twice the kernel's watermarks (some 1 % of memory), below which it stops every
# process that needs a page.
_FLOOR_SHARE = 0.02
_LEAST_FLOOR_BYTES = 64 * 2**20  # on small boards: more than a checkpoint of the zoo's networks
_OWN_SHARE = 0.5  # of what is in use in a pool, for the run to be what fills it
# Of the last 10 s in which a process waited for memory. Swapping alone is no sign: the kernel also
# moves unused pages to swap.
_PRESSURE_PERCENT = 20.0
_PAUSE_S = 1.5  # after a worker's end: sizes of all processes are read once a second
_PATIENCE_S = 10.0  # for a run that is being swapped to reach the end of its step


@dataclass(frozen=True)
class MemoryPool:
    """Memory that the run shares with other processes."""

    name: str
    total_bytes: int
    available_bytes: int

    @property
    def floor_bytes(self) -> int:
        """What must stay available."""
        return max(round(self.total_bytes * _FLOOR_SHARE), _LEAST_FLOOR_BYTES)


@dataclass(frozen=True)
class MemoryReading:
    """A run's memory at one moment, and what was done about it so far.

    `used_bytes` is the whole process tree's, swap included; `workers_bytes` of it would be free
    without the workers. `acted_s` and `asked_s`: how long ago something was last done, and when the
    run was asked to end; None if never.
    """

    used_bytes: int
    pools: tuple[MemoryPool, ...] = ()
    workers: int = 0
    workers_bytes: int = 0
    swap_growth_bytes: int = 0
    pressure_percent: float | None = None
    acted_s: float | None = None
    asked_s: float | None = None


def decide(reading: MemoryReading, limit_bytes: float | None) -> Action:
    """Return the action that a reading calls for."""
    # Pools of which the run itself holds most of what is in use.
    own_pools = [
        pool
        for pool in reading.pools
        if reading.used_bytes > _OWN_SHARE * (pool.total_bytes - pool.available_bytes)
    ]
    swapped = (
        bool(own_pools)
        and reading.swap_growth_bytes > 0
        and (reading.pressure_percent or 0.0) > _PRESSURE_PERCENT
    )
    limit_bytes, used_bytes = limit_bytes or math.inf, reading.used_bytes
    alone_bytes = used_bytes - (reading.workers_bytes if reading.workers else 0)
    over = alone_bytes > limit_bytes or any(
        pool.available_bytes < pool.floor_bytes / 2 for pool in own_pools
    )
    near = used_bytes > NEAR_SHARE * limit_bytes or any(
        pool.available_bytes < pool.floor_bytes for pool in own_pools
    )
    asked_in_vain = reading.asked_s is not None and reading.asked_s > _PATIENCE_S
    if over or (swapped and asked_in_vain):
        return Action.KILL
    if not (swapped or near) or reading.asked_s is not None:
        return Action.NOTHING
    if reading.acted_s is not None and reading.acted_s < _PAUSE_S:
        return Action.NOTHING
    return Action.END_WORKER if reading.workers else Action.ASK


@dataclass(frozen=True)
class MemoryLimit:
    """The memory limit of a process tree; `reason` says why no control group enforces it."""

    limit_bytes: int
    group: ControlGroup | None = None
    reason: str | None = None


@contextlib.contextmanager
def holding(limit_bytes: int | None) -> Iterator[MemoryLimit | None]:
    """Enforce a memory limit while a training runs, by a control group if one can be made."""
    if limit_bytes is None:
        yield None
        return
    try:
        group = cgroup.make(limit_bytes)
    except MachineError as error:
        yield MemoryLimit(limit_bytes, reason=str(error))
        return
    try:
        yield MemoryLimit(limit_bytes, group)
    finally:
        group.remove()


# A training allocates about a gigabyte per second: 50 MiB between two checks of a limit.
_CHECK_LIMIT_EVERY_S = 0.05
_CHECK_MACHINE_EVERY_S = 0.1
_CHECK_SCRIPT_EVERY_S = 1.0


@dataclass
class MemoryWatch:
    """The memory of one process tree, from its start to its end.

    `may_end`: it is ours to end; a user's script is only warned about. `unified`: its device memory
    is host memory too.
    """

    folder: RunFolder
    child: ChildProcess
    sampler: Sampler
    print_line: Callable[[str], None]
    limit: MemoryLimit | None = None
    has_workers: bool = False
    may_end: bool = True
    unified: bool = False
    killed: bool = False

    # The last reading, and the one that last caused an action.
    seen: MemoryReading = field(default_factory=lambda: MemoryReading(0))
    cause: MemoryReading | None = None

    _tree: MemoryReading = field(default_factory=lambda: MemoryReading(0))  # as last taken
    _swap_bytes: int = 0
    _acted_at: float | None = None
    _asked_at: float | None = None

    def __post_init__(self) -> None:
        self._total_bytes = host.memory_bytes()
        self._around = cgroup.limited()  # groups that we are in
        self._limit_bytes = self.limit.limit_bytes if self.limit else None
        self._group = self.limit.group if self.limit else None
        self._kills_before = self._count_kills()
        if self.limit is not None:
            self._add_event(
                "memory_limit",
                limit_bytes=self.limit.limit_bytes,
                held_by="watchdog" if self._group is None else "control group",
                reason=self.limit.reason,
            )

    @property
    def check_every_s(self) -> float:
        """The interval between two checks."""
        if not self.may_end:
            return _CHECK_SCRIPT_EVERY_S
        return _CHECK_MACHINE_EVERY_S if self.limit is None else _CHECK_LIMIT_EVERY_S

    @property
    def stop_requested(self) -> bool:
        """Whether the training was asked to end between two steps."""
        return self._asked_at is not None

    def take(self, tree: TreeReading) -> None:
        """Store a full reading for the checks until the next one."""
        growth_bytes = self._tree.swap_growth_bytes
        if tree.swap_bytes is not None:
            growth_bytes = tree.swap_bytes - self._swap_bytes
            self._swap_bytes = tree.swap_bytes
        tightest = cgroup.tightest(self._around)
        self._tree = MemoryReading(
            tree.rss_bytes,
            pools=() if tightest is None else (MemoryPool("container", *tightest),),
            workers=tree.workers if self.has_workers else 0,
            swap_growth_bytes=growth_bytes,
            pressure_percent=self.sampler.memory_pressure_percent,
        )

    def check(self) -> None:
        """Check the memory once, and act if necessary."""
        used_bytes = self._used_bytes()
        if used_bytes is None or self.killed:
            return
        now = time.monotonic()
        machine = MemoryPool("machine", self._total_bytes, host.available_bytes())
        self.seen = replace(
            self._tree,
            used_bytes=used_bytes,
            pools=(machine, *self._tree.pools),
            workers_bytes=self.sampler.others_bytes if self._tree.workers else 0,
            acted_s=None if self._acted_at is None else now - self._acted_at,
            asked_s=None if self._asked_at is None else now - self._asked_at,
        )
        action = decide(self.seen, self._limit_bytes)
        if action is not Action.NOTHING:
            self._act(action, now)

    def kernel_killed(self) -> bool:
        """Return whether the kernel has killed a process here for lack of memory."""
        kills = self._count_kills()
        return kills is not None and kills != self._kills_before

    def what_happened(self) -> str:
        """Return a clause that explains why the run was ended."""
        cause = self.cause or self.seen
        used = format_bytes(cause.used_bytes)
        limit = self._limit_bytes
        if limit is not None and cause.used_bytes > limit:
            return f"the run took {used}, over its limit of {format_bytes(limit)}"
        if limit is not None and cause.used_bytes > NEAR_SHARE * limit:
            return f"the run took {used}, near its limit of {format_bytes(limit)}"
        pool = min(cause.pools, key=lambda pool: pool.available_bytes / pool.total_bytes)
        left = f"{format_bytes(pool.available_bytes)} of {format_bytes(pool.total_bytes)}"
        reason = f"the run took {used}, and {left} were left on this {pool.name}"
        return f"{reason}; it was being swapped" if cause.swap_growth_bytes > 0 else reason

    def _used_bytes(self) -> int | None:
        """Return what the run holds of the host's memory, a device's part of it included."""
        if self._group is not None:
            used_bytes = cgroup.used_of(self._group.folder)
        elif (used_bytes := resident_bytes(self.sampler.process)) is not None:
            self.sampler.report_resident(used_bytes)
            used_bytes += self.sampler.others_bytes + self._swap_bytes
        on_device = self.sampler.device_memory_bytes if self.unified else None
        return None if used_bytes is None else used_bytes + (on_device or 0)

    def _count_kills(self) -> int | None:
        return host.oom_kills() if self._group is None else cgroup.kills_of(self._group.folder)

    def _act(self, action: Action, now: float) -> None:
        if not self.may_end:
            if self.cause is None:  # a user's script: only a warning, once
                self.cause = self.seen
                self.add_guard_event("warned")
                self.print_line(f"stepscope: warning: memory is short: {self.what_happened()}")
            return
        if action is Action.END_WORKER:
            worker = youngest_child(self.sampler.process)
            if worker is None:
                action = Action.ASK
            else:
                with contextlib.suppress(psutil.Error):  # it has just ended by itself
                    worker.kill()
                self.print_line("memory is short: ended one loader worker")
        if action is Action.KILL:
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
        elif action is Action.ASK:
            self._asked_at = now
            self.child.send_signal(signal.SIGUSR1)
            self.print_line("memory is short: stopping after this step")
        self._acted_at, self.cause = now, self.seen
        self.add_guard_event(action.value)

    def add_guard_event(self, action: str) -> None:
        """Record an action with the last reading."""
        self._add_event(
            "memory_guard",
            action=action,
            used_bytes=self.seen.used_bytes,
            limit_bytes=self._limit_bytes,
            available_bytes=min((pool.available_bytes for pool in self.seen.pools), default=None),
            workers=self.seen.workers,
        )

    def _add_event(self, kind: str, **detail: Any) -> None:
        with contextlib.suppress(MachineError):  # the disk is full: the telemetry finds out too
            elapsed_s = seconds(now_ns() - self.sampler.origin_ns)
            self.folder.add_event(kind, elapsed_s, **detail)

"""Which numbers of workers are worth a trial on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.units import format_count

# Workers that mostly wait (for a disk, a server) need no core each; more than this is no answer.
_MOST_WAITING_A_CPU = 8
_LITTLE_CPU = 0.5  # of a worker's time


@dataclass(frozen=True)
class Candidate:
    """A number of workers; with other compute threads than torch chose, where they compete."""

    workers: int
    threads: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The settings that it stands for."""
        threads = {} if self.threads is None else {"threads": self.threads}
        return {"workers": self.workers, **threads}

    @property
    def size(self) -> tuple[int, int]:
        """What orders them: workers; with as many, those that leave torch its threads first."""
        return self.workers, 0 if self.threads is None else 1

    def __str__(self) -> str:
        counted = format_count(self.workers, "worker")
        if self.threads is None:
            return counted
        return f"{counted} with {format_count(self.threads, 'thread')}"


@dataclass(frozen=True)
class Bounds:
    """What there is for workers. None: nobody knows, so it does not bind.

    `limit_bytes` is what the whole training may take, `alone_bytes` what it takes without workers.
    """

    cpus: int
    limit_bytes: int | None = None
    alone_bytes: int | None = None
    worker_bytes: int | None = None
    shm_free_bytes: int | None = None
    batch_bytes: int | None = None
    prefetch: int = 2
    by_epoch: int | None = None

    @property
    def by_memory(self) -> int | None:
        """How many workers the memory takes that the training itself leaves."""
        if self.limit_bytes is None or self.alone_bytes is None or not self.worker_bytes:
            return None
        return max(0, self.limit_bytes - self.alone_bytes) // self.worker_bytes

    @property
    def by_shared_memory(self) -> int | None:
        """How many workers' finished batches fit into /dev/shm, with the one in use."""
        if self.shm_free_bytes is None or not self.batch_bytes:
            return None
        return max(0, self.shm_free_bytes // self.batch_bytes - 1) // self.prefetch

    def most(self, *, mostly_waiting: bool = False) -> int:
        """Return the largest number that is worth a trial."""
        by_cpus = self.cpus * (_MOST_WAITING_A_CPU if mostly_waiting else 1)
        limits = (by_cpus, self.by_memory, self.by_shared_memory, self.by_epoch)
        return min(limit for limit in limits if limit is not None)

    def to_json(self) -> dict[str, int | None]:
        """Say what binds."""
        return {
            "cpus": self.cpus,
            "by_memory": self.by_memory,
            "by_shared_memory": self.by_shared_memory,
            "by_epoch": self.by_epoch,
        }


def first_candidates(bounds: Bounds, current: int) -> list[Candidate]:
    """Return 0, 1, 2, 4, … up to the bound, the bound itself, and what is set now."""
    most = bounds.most()
    numbers = {0, most, current}
    power = 1
    while power < most:
        numbers.add(power)
        power *= 2
    return [Candidate(number) for number in sorted(numbers)]


def next_larger(
    largest: int, bounds: Bounds, load_s: float | None, load_cpu_s: float | None
) -> Candidate | None:
    """Return a larger number to try where workers mostly wait for something that is no core."""
    if not load_s or load_cpu_s is None or load_cpu_s > _LITTLE_CPU * load_s:
        return None
    most = bounds.most(mostly_waiting=True)
    wanted = max(1, 2 * largest)
    return Candidate(min(wanted, most)) if most > largest else None

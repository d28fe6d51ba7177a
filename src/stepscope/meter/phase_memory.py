"""Memory of this process by phase, and of the workers that it has started."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil

from stepscope.hardware import process_memory
from stepscope.hardware.process import WorkerMemory, read_tree, with_workers_sizes
from stepscope.hardware.process_memory import read_allocator


@dataclass(frozen=True)
class PhaseSize:
    """Memory of the process at the end of a phase, and its peak in it. None: unknown.

    `in_use_bytes` is what the allocator has handed out; `kept_bytes` is what it caches.
    """

    phase: str
    end_bytes: int
    peak_bytes: int | None
    in_use_bytes: int | None
    kept_bytes: int | None


@dataclass
class PhaseMemory:
    """Read the memory at the end of each phase and reset the kernel's high-water mark.

    The first phase begins with the process.
    """

    sizes: list[PhaseSize] = field(default_factory=list)
    _begun_anew: bool = True

    def lap(self, phase: str) -> None:
        """End a phase; the next one begins."""
        peak = process_memory.peak_bytes() if self._begun_anew else None
        found = read_allocator()
        self.sizes.append(
            PhaseSize(
                phase,
                process_memory.own_resident_bytes(),
                peak,
                None if found is None else found.in_use_bytes,
                None if found is None else found.kept_bytes,
            )
        )
        self._begun_anew = process_memory.forget_peak()


@dataclass
class PeakWithWorkers:
    """The peak memory of this process and its workers, from `begin` on.

    Counted as in `telemetry.telemetry_sampler`: the high-water mark of this process, the workers'
    private bytes, and batches in /dev/shm that this process has not mapped.
    """

    others_bytes: int = 0
    _begun_anew: bool = False
    _workers: WorkerMemory = field(default_factory=WorkerMemory)

    def begin(self) -> None:
        """Reset the high-water mark of this process."""
        self._begun_anew = process_memory.forget_peak()

    def look(self) -> None:
        """Measure the workers, which takes some milliseconds each."""
        tree = read_tree(psutil.Process())
        if tree is not None:
            others_bytes = self._workers.bytes_of(with_workers_sizes(tree))
            self.others_bytes = max(self.others_bytes, others_bytes or 0)

    def peak_bytes(self) -> int | None:
        """Return the peak; None where the high-water mark is missing or cannot be reset."""
        own = process_memory.peak_bytes() if self._begun_anew else None
        return None if own is None else own + self.others_bytes

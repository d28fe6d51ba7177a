"""Memory of this process by phase, and of the workers that it has started."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil

from stepscope.hardware import process_memory
from stepscope.hardware.process import WorkerMemory, read_tree, with_workers_sizes
from stepscope.records.types import PhaseReading


@dataclass
class PhaseMemory:
    """Read the memory at the end of each phase and reset the kernel's high-water mark."""

    _peak_was_reset: bool = True

    def lap(self, phase: str, epoch: int, step: int) -> PhaseReading:
        """End a phase and return its memory; the next one begins."""
        peak = process_memory.peak_bytes() if self._peak_was_reset else None
        in_use, kept = process_memory.read_allocator()
        resident = process_memory.own_resident_bytes()
        self._peak_was_reset = process_memory.forget_peak()
        return {
            "epoch": epoch,
            "step": step,
            "phase": phase,
            "end_bytes": resident,
            "peak_bytes": peak,
            "in_use_bytes": in_use,
            "kept_bytes": kept,
        }


@dataclass
class PeakWithWorkers:
    """The peak memory of this process and its workers, counted as by the telemetry sampler."""

    others_bytes: int = 0
    _peak_was_reset: bool = False
    _workers: WorkerMemory = field(default_factory=WorkerMemory)

    def begin(self) -> None:
        """Reset the high-water mark of this process."""
        self._peak_was_reset = process_memory.forget_peak()

    def measure_workers(self) -> None:
        """Measure the workers, which takes some milliseconds each."""
        tree = read_tree(psutil.Process())
        if tree is not None:
            others_bytes = self._workers.bytes_of(with_workers_sizes(tree))
            self.others_bytes = max(self.others_bytes, others_bytes or 0)

    def peak_bytes(self) -> int | None:
        """Return the peak; None where the high-water mark is missing or cannot be reset."""
        own = process_memory.peak_bytes() if self._peak_was_reset else None
        return None if own is None else own + self.others_bytes

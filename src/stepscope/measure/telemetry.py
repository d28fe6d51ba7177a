"""Telemetry of a training, sampled by a process that is not the training's.

A row once or twice a second. Proportional sizes take the kernel 15 ms for a process of 600 MB, on a
core that the training could use: they are read when memory has grown, and else every few seconds.
The sampler also keeps the host pool's peak: the kernel's high-water mark of the training process,
plus the others' private bytes, plus what lies in /dev/shm and is not already in the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import thread_time

import psutil

from stepscope.hardware import host
from stepscope.hardware.processes import TreeReading, read_tree, with_sizes
from stepscope.measure.beside import Beside
from stepscope.measure.clock import now_ns, seconds
from stepscope.measure.pace import pause_after_s
from stepscope.measure.surroundings import Surroundings
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog, number

_SAMPLE_EVERY_S = (0.5, 1.0)
_SIZES_EVERY_S = (1.0, 30.0)
# Memory that workers share with their parent becomes their own as they touch it, and nothing else
# tells of it.
_SIZES_OF_WORKERS_EVERY_S = (1.0, 5.0)
_GROWN = 1.05  # times what it was: the sizes are worth another look


@dataclass
class Sampler:
    """Watch one process tree and write a row each time `sample` is called."""

    process: psutil.Process
    log: CsvLog
    origin_ns: int
    surroundings: Surroundings | None = None  # what the machine tells beside its processes
    peak_main_bytes: int | None = None
    peak_others_bytes: int = 0
    others_bytes: int = 0  # as last read: private bytes of the workers, and batches in flight
    device_memory_bytes: int | None = None  # as last told by the training
    peak_device_memory_bytes: int | None = None

    pause_s: float = _SAMPLE_EVERY_S[0]  # until the next sample

    _sizes_at_ns: int = 0
    _sizes_pause_s: float = 0.0
    _largest: tuple[int, int] = (0, 0)  # processes and resident bytes, when sizes were read
    _beside: Beside = field(default_factory=Beside)

    @property
    def peak_memory_bytes(self) -> int | None:
        """The host pool's peak so far; None where the system keeps no high-water mark."""
        if self.peak_main_bytes is None:
            return None
        return self.peak_main_bytes + self.peak_others_bytes

    def told(self, device_bytes: int) -> None:
        """Take what the training says that it holds of its device: nobody else can see it."""
        self.device_memory_bytes = device_bytes
        self.peak_device_memory_bytes = max(self.peak_device_memory_bytes or 0, device_bytes)

    def glimpsed(self, resident_bytes: int) -> None:
        """Take a size that was seen between two samples: there may be no next one."""
        if self.peak_main_bytes is not None:
            self.peak_main_bytes = max(self.peak_main_bytes, resident_bytes)

    def sample(self) -> TreeReading | None:
        """Take one reading and append its row; None when the process has ended."""
        began_s = thread_time()
        now = now_ns()
        reading = read_tree(self.process)
        if reading is None:
            return None
        sizes_s = 0.0
        if self._wants_sizes(reading, now):
            reading, sizes_s = self._add_sizes(reading, now)
        self._keep_peak(reading)
        time_s = seconds(now - self.origin_ns)
        known: dict[str, float | None] = {
            "time_s": time_s,
            "pss_bytes": reading.pss_bytes,
            "rss_bytes": reading.rss_bytes,
            "workers_private_bytes": reading.workers_private_bytes,
            "workers": reading.workers,
            "swap_bytes": reading.swap_bytes,
            "available_bytes": host.available_bytes(),
            "main_cpu_s": reading.main_cpu_s,
            "workers_cpu_s": reading.workers_cpu_s,
            "read_bytes": reading.read_bytes,
            "major_faults": reading.major_faults,
            "pressure_cpu": host.pressure_percent("cpu"),
            "pressure_io": host.pressure_percent("io"),
            "pressure_memory": host.pressure_percent("memory"),
            "cpu_mhz": host.cpu_mhz(),
            "device_memory_bytes": self.device_memory_bytes,
        }
        if self.surroundings is not None:
            known |= self.surroundings.read(time_s, reading.main_cpu_s + reading.workers_cpu_s)
        self.log.append(",".join(number(known.get(name)) for name in schema.TELEMETRY_COLUMNS))
        self.pause_s = pause_after_s(thread_time() - began_s - sizes_s, _SAMPLE_EVERY_S)
        return reading

    def _wants_sizes(self, reading: TreeReading, now: int) -> bool:
        """Say whether it is time for sizes: after a while, or sooner when there is more to see."""
        processes, rss_bytes = self._largest
        has_grown = (
            len(reading.processes) > processes or reading.tree_rss_bytes > _GROWN * rss_bytes
        )
        wait_s = _SIZES_EVERY_S[0] if has_grown else self._sizes_pause_s
        return now - self._sizes_at_ns >= wait_s * 1e9

    def _add_sizes(self, reading: TreeReading, now: int) -> tuple[TreeReading, float]:
        """Return the reading with its sizes, and the CPU time that these took."""
        began_s = thread_time()
        reading = with_sizes(reading)
        took_s = thread_time() - began_s
        processes, rss_bytes = self._largest
        self._largest = (
            max(processes, len(reading.processes)),
            max(rss_bytes, reading.tree_rss_bytes),
        )
        every_s = _SIZES_OF_WORKERS_EVERY_S if reading.workers else _SIZES_EVERY_S
        self._sizes_at_ns, self._sizes_pause_s = now, pause_after_s(took_s, every_s)
        return reading, took_s

    def _keep_peak(self, reading: TreeReading) -> None:
        if reading.peak_rss_bytes is not None:
            self.peak_main_bytes = max(self.peak_main_bytes or 0, reading.peak_rss_bytes)
        others_bytes = self._beside.bytes_of(reading)
        if others_bytes is not None:
            self.others_bytes = others_bytes
            self.peak_others_bytes = max(self.peak_others_bytes, others_bytes)

"""Telemetry of a training, sampled by another process.

The proportional size of the training process takes the kernel 15 ms for 600 MB: it is read when
memory has grown, otherwise every few seconds. The peak is the kernel's high-water mark of the
training process, the workers' private bytes, and batches in /dev/shm that are not in the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, process_time, thread_time

import psutil

from stepscope.hardware import host
from stepscope.hardware.gpu import Devices
from stepscope.hardware.process import (
    TreeReading,
    WorkerMemory,
    read_tree,
    with_pss,
    with_workers_sizes,
)
from stepscope.hardware.thermal import find_zones
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog, number
from stepscope.telemetry.energy_sampler import MOST_SHARE, RecordEvent, pause_after_s
from stepscope.telemetry.throttle_watch import Throttling

READ_EVERY_S = 1.0


class Surroundings:
    """Read the telemetry of the machine: temperature, device, power and throttling."""

    def __init__(
        self, root: Path, record_event: RecordEvent, power_w: Callable[[], float | None]
    ) -> None:
        self._power_w = power_w
        self._zones = find_zones(root)
        self._devices = Devices(root)
        self._throttling = Throttling(root, record_event)
        self._last: tuple[float, float] | None = None  # time, and CPU time of the training

    def read(self, time_s: float, cpu_s: float | None) -> dict[str, float | None]:
        """Return figures by column, {} if not due; `cpu_s` is the training's CPU time so far."""
        last = self._last
        if last is not None and time_s - last[0] < READ_EVERY_S:
            return {}
        busy_cpus = None
        if last is not None and cpu_s is not None:
            busy_cpus = (cpu_s - last[1]) / (time_s - last[0])
        self._last = (time_s, cpu_s or 0.0)
        device = self._devices.read()
        heat_c = {zone: c for zone in self._zones if (c := zone.celsius()) is not None}
        self._throttling.check(time_s, busy_cpus, heat_c, device)
        known_c = [*heat_c.values(), device.temperature_c]
        return {
            "device_percent": device.percent,
            "device_mhz": device.mhz,
            "power_w": self._power_w(),
            "temperature_c": max((c for c in known_c if c is not None), default=None),
        }


_SAMPLE_EVERY_S, _SAMPLE_SLOWLY_EVERY_S = 0.5, 1.0
_WORKERS_SIZES_EVERY_S = 1.0
_PSS_EVERY_S = (1.0, 60.0)
_PSS_MOST_SHARE = MOST_SHARE / 4  # it is only shown in a chart
_GROWN = 1.05  # growth beyond the maximum that makes another reading due


@dataclass
class Sampler:
    """Sample one process tree and write a row at each call of `sample`."""

    process: psutil.Process
    log: CsvLog
    origin_ns: int
    surroundings: Surroundings | None = None  # telemetry of the machine
    peak_main_bytes: int | None = None
    peak_others_bytes: int = 0
    others_bytes: int = 0  # as last read: the workers' private bytes and batches in flight
    memory_pressure_percent: float | None = None  # as last read
    device_memory_bytes: int | None = None  # as last reported by the training
    peak_device_memory_bytes: int | None = None

    pause_s: float = _SAMPLE_EVERY_S  # until the next sample

    _workers_sizes_at_ns: int = 0
    _pss_at_ns: int = 0
    _pss_pause_s: float = 0.0
    _largest_bytes: int = 0  # resident, when the proportional size was read
    _workers: WorkerMemory = field(default_factory=WorkerMemory)

    @property
    def peak_memory_bytes(self) -> int | None:
        """The host pool's peak so far; None where the system keeps no high-water mark."""
        if self.peak_main_bytes is None:
            return None
        return self.peak_main_bytes + self.peak_others_bytes

    def report_device_memory(self, device_bytes: int) -> None:
        """Set the device memory of the training, which only the training can read."""
        self.device_memory_bytes = device_bytes
        self.peak_device_memory_bytes = max(self.peak_device_memory_bytes or 0, device_bytes)

    def report_resident(self, resident_bytes: int) -> None:
        """Add a resident size that was read between two samples to the peak."""
        if self.peak_main_bytes is not None:
            self.peak_main_bytes = max(self.peak_main_bytes, resident_bytes)

    def report_peak(self, peak_bytes: int) -> None:
        """Add the high-water mark that the process read itself: it may end before a sample."""
        self.peak_main_bytes = max(self.peak_main_bytes or 0, peak_bytes)

    def sample(self, *, is_last: bool = False) -> TreeReading | None:
        """Append a row, the last with every size; return None when the process has ended."""
        began_s = thread_time()
        now = now_ns()
        reading = read_tree(self.process)
        if reading is None:
            return None
        sampled_s = thread_time() - began_s
        wants_pss = is_last or self._wants_pss(reading, now)
        if wants_pss or now - self._workers_sizes_at_ns >= _WORKERS_SIZES_EVERY_S * 1e9:
            self._workers_sizes_at_ns = now
            reading = with_workers_sizes(reading)
        if wants_pss:
            began_s = thread_time()
            reading = with_pss(reading)
            cost_s = thread_time() - began_s
            self._pss_at_ns = now
            self._pss_pause_s = pause_after_s(cost_s, _PSS_EVERY_S, _PSS_MOST_SHARE)
            self._largest_bytes = max(self._largest_bytes, reading.rss_bytes)
        began_s = thread_time()
        self._keep_peak(reading)
        self.memory_pressure_percent = host.pressure_percent("memory")
        time_s = seconds(now - self.origin_ns)
        # The columns of the process tree have the names of its fields.
        known: dict[str, float | None] = {
            **{name: getattr(reading, name, None) for name in schema.TELEMETRY_COLUMNS},
            "time_s": time_s,
            "available_bytes": host.available_bytes(),
            "pressure_cpu": host.pressure_percent("cpu"),
            "pressure_io": host.pressure_percent("io"),
            "pressure_memory": self.memory_pressure_percent,
            "cpu_mhz": host.cpu_mhz(),
            "device_memory_bytes": self.device_memory_bytes,
            "machine_cpu_s": host.busy_cpu_s(),
        }
        if self.surroundings is not None:
            known |= self.surroundings.read(time_s, reading.main_cpu_s + reading.workers_cpu_s)
        self.log.append(",".join(number(known[name]) for name in schema.TELEMETRY_COLUMNS))
        sampled_s += thread_time() - began_s
        is_costly = sampled_s > MOST_SHARE * _SAMPLE_EVERY_S
        self.pause_s = _SAMPLE_SLOWLY_EVERY_S if is_costly else _SAMPLE_EVERY_S
        return reading

    def _wants_pss(self, reading: TreeReading, now: int) -> bool:
        """Return whether the proportional size is due: sooner if memory has grown."""
        has_grown = reading.rss_bytes > _GROWN * self._largest_bytes
        pause_s = _PSS_EVERY_S[0] if has_grown else self._pss_pause_s
        return now - self._pss_at_ns >= pause_s * 1e9

    def _keep_peak(self, reading: TreeReading) -> None:
        if reading.peak_rss_bytes is not None:
            self.peak_main_bytes = max(self.peak_main_bytes or 0, reading.peak_rss_bytes)
        others_bytes = self._workers.bytes_of(reading)
        if others_bytes is not None:
            self.others_bytes = others_bytes
            self.peak_others_bytes = max(self.peak_others_bytes, others_bytes)


@dataclass(frozen=True)
class CpuShare:
    """The share of one core that this process has used since the object was created."""

    _began_s: float = field(default_factory=monotonic)
    _used_s: float = field(default_factory=process_time)

    def share(self) -> float:
        """Return the share up to now."""
        return (process_time() - self._used_s) / (monotonic() - self._began_s)

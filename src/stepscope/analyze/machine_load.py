"""Which programs used the CPUs while a run had the machine?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from stepscope.records.run_reader import Run

_MUCH = 0.2  # of the CPUs, by other programs
_CROWDED = 0.9  # of the CPUs, by all programs together


@dataclass(frozen=True)
class CpuUse:
    """The shares of the CPUs that all programs and other programs used for a time."""

    took_s: float
    cpus: int
    busy_share: float
    others_share: float

    @property
    def disturbs(self) -> bool:
        """Whether other programs took CPU time which the run could have used."""
        return self.others_share >= _MUCH and self.busy_share >= _CROWDED


class _CpuSample(NamedTuple):
    time_s: float
    workers: int
    training_s: float
    workers_s: float
    machine_s: float


def cpu_use(run: Run, begin_s: float, end_s: float) -> CpuUse | None:
    """Return the use of the CPUs between two times of a run; None if it was not sampled."""
    cpus = run.info.get("environment", {}).get("cpus_usable") or 1
    took_s = busy_s = others_s = 0.0
    for before, after in _intervals(run, begin_s, end_s):
        took_s += after.time_s - before.time_s
        machine_s = after.machine_s - before.machine_s
        own_s = after.training_s - before.training_s + after.workers_s - before.workers_s
        busy_s += machine_s
        others_s += max(0.0, machine_s - own_s)
    if not took_s:
        return None
    cpu_s = took_s * cpus
    return CpuUse(took_s, cpus, busy_s / cpu_s, min(1.0, others_s / cpu_s))


def _intervals(run: Run, begin_s: float, end_s: float) -> Iterator[tuple[_CpuSample, _CpuSample]]:
    """Yield samples that follow one another.

    Where workers came or went, or torch.compile ran compilers, the CPU time of the run's own
    processes is not known.
    """
    compiled = run.summary.get("compilation")
    compilations = compiled["compilations"] if compiled else []
    names = ("time_s", "workers", "main_cpu_s", "workers_cpu_s", "machine_cpu_s")
    rows = zip(*(run.telemetry[name] for name in names), strict=True)
    samples = [_CpuSample(*row) for row in rows if None not in row and begin_s <= row[0] <= end_s]
    for before, after in pairwise(samples):
        compiles = any(
            each["start_s"] < after.time_s and before.time_s < each["start_s"] + each["took_s"]
            for each in compilations
        )
        same_workers = before.workers == after.workers and before.workers_s <= after.workers_s
        if same_workers and not compiles:
            yield before, after

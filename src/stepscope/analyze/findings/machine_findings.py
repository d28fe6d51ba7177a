"""Findings on the machine while the run had it: other programs on its CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.units import format_duration, format_share

_MUCH = 0.2  # of the CPUs, by other programs
_CROWDED = 0.9  # of the CPUs, by all programs together
_SHORTEST_S = 2.0


class _CpuSample(NamedTuple):
    time_s: float
    workers: int
    training_s: float
    workers_s: float
    machine_s: float


def busy_machine(view: RunView) -> Finding | None:
    """Report other programs that took CPU time which the run could have used."""
    cpus = view.run.info.get("environment", {}).get("cpus_usable") or 1
    took_s = busy_s = others_s = 0.0
    for before, after in _intervals(view):
        took_s += after.time_s - before.time_s
        machine_s = after.machine_s - before.machine_s
        own_s = after.training_s - before.training_s + after.workers_s - before.workers_s
        busy_s += machine_s
        others_s += max(0.0, machine_s - own_s)
    if took_s < _SHORTEST_S:
        return None
    share = min(1.0, others_s / (took_s * cpus))
    if share < _MUCH or busy_s < _CROWDED * took_s * cpus:
        return None
    return Finding(
        "busy_machine",
        f"Other programs used {format_share(share)} of the CPU while this ran, so the timings "
        "cannot be trusted.",
        (
            f"{format_duration(others_s)} of CPU time by other programs in "
            f"{format_duration(took_s)} on {cpus} CPUs",
        ),
        None,
        share,
        change="run it again on an idle machine",
    )


def _intervals(view: RunView) -> Iterator[tuple[_CpuSample, _CpuSample]]:
    """Yield samples that follow one another in the epochs that count.

    Where workers came or went, or torch.compile ran compilers, the CPU time of the run's own
    processes is not known.
    """
    starts_s = view.column("start_s")
    begin_s, end_s = starts_s[0], starts_s[-1] + view.step_s[-1]
    compiled = view.run.summary.get("compilation")
    compilations = compiled["compilations"] if compiled else []
    table = view.run.telemetry
    names = ("time_s", "workers", "main_cpu_s", "workers_cpu_s", "machine_cpu_s")
    rows = zip(*(table[name] for name in names), strict=True)
    samples = [_CpuSample(*row) for row in rows if None not in row and begin_s <= row[0] <= end_s]
    for before, after in pairwise(samples):
        compiles = any(
            each["start_s"] < after.time_s and before.time_s < each["start_s"] + each["took_s"]
            for each in compilations
        )
        same_workers = before.workers == after.workers and before.workers_s <= after.workers_s
        if same_workers and not compiles:
            yield before, after

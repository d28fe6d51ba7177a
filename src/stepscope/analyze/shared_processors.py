"""Do the processes that were measured share what one of them had alone?

On a CPU they do: then a speed-up says how well one machine is used, and not what more of them
would bring.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.scaling import Scale, trials_with_rate
from stepscope.records.reader import Run, load_run
from stepscope.records.sweep import Sweep
from stepscope.units import format_count


def shared_processors(sweep: Sweep, scale: Scale) -> Iterator[str]:
    """Say which numbers of processes have less of the machine each than the base has."""
    base, *others = (_one_run(sweep, scale, count) for count in scale.processes)
    threads = _cpu_threads(base)
    if base is None or threads is None:
        return
    cpus = base.info["environment"].get("cpus_usable")
    for count, run in zip(scale.processes[1:], others, strict=True):
        each = _cpu_threads(run)
        if each is None:
            continue
        threads_each = format_count(each, "thread")
        if each < threads:
            yield (
                f"each of {count} processes had {threads_each}, the base {threads}: "
                "they share the processors of this machine. --threads 1 gives every process one"
            )
        elif cpus is not None and each * count > cpus:
            yield f"{count} processes of {threads_each} each share {cpus} processors"


def _one_run(sweep: Sweep, scale: Scale, count: int) -> Run | None:
    trials = trials_with_rate(sweep, scale.values("strong", count))
    return load_run(sweep.folder_of(trials[0])) if trials else None


def _cpu_threads(run: Run | None) -> int | None:
    """Return the threads of a process that computes on the CPU; None on another device."""
    environment = (run.info.get("environment") if run is not None else None) or {}
    threads: int | None = environment.get("threads")
    return threads if str(environment.get("device")).startswith("cpu") else None

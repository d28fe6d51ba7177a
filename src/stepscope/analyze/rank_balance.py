"""Which rank of a distributed training slows down the others, and in which phase?

All ranks end a step together, because they all-reduce gradients in it: a slow rank shows in the
waiting of the others, which is part of their `communication_s`. So ranks are compared by their own
time: the step, and `backward`, without communication.
"""

from __future__ import annotations

from typing import Any

from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.table import Table
from stepscope.stats import quantile


def ranks_of(run: Run) -> list[Run]:
    """Return the ranks of a distributed run, each as a run; [] for any other run.

    A run that was resumed in fewer processes keeps the folders of the others, which are left out. A
    traced script does not record the number of ranks.
    """
    found = (each for each in (run.path / schema.RANKS).glob("*") if each.name.isdecimal())
    ranks = {int(each.name): each for each in found if (each / schema.RUN).is_file()}
    processes = run.spec.get("processes")
    if processes == 1:
        return []
    return [
        load_run(ranks[rank]) for rank in sorted(ranks) if processes is None or rank < processes
    ]


def summarize_ranks(run: Run) -> dict[str, Any]:
    """Return the figures that only a distributed run has; {} for one process."""
    ranks = [_of_rank(rank) for rank in ranks_of(run)]
    if not ranks:
        return {}
    return {"ranks": ranks, "slowest_rank": slowest_by_phase(ranks)}


def slowest_by_phase(ranks: list[dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """Return for each phase the rank with the longest mean, and the mean of the others.

    None if fewer than two ranks have phases.
    """
    timed = [rank for rank in ranks if rank["own_s"] is not None]
    if len(timed) < 2:
        return None
    slowest = {}
    for phase in schema.PHASES:
        first, *others = sorted(timed, key=lambda rank: float(rank["own_s"][phase]), reverse=True)
        slowest[phase] = {
            "rank": first["rank"],
            "host": first["host"],
            "mean_s": first["own_s"][phase],
            "others_mean_s": sum(rank["own_s"][phase] for rank in others) / len(others),
        }
    return slowest


def _of_rank(rank: Run) -> dict[str, Any]:
    """Return the figures of a rank from its summary; None if it was cut short."""
    summary, environment = rank.summary, rank.info.get("environment") or {}
    distributed = environment.get("distributed") or {}
    names = ("steps", "samples", "closure", "phases", "communication", "peak_memory_bytes")
    figures = {name: summary.get(name) for name in names}
    return {
        "rank": int(rank.path.name),
        "host": distributed.get("host") or environment.get("hostname"),
        "status": rank.status,
        "share": distributed.get("share"),
        **figures,
        "own_s": _own_s(figures["phases"], figures["communication"]),
    }


def _own_s(
    phases: dict[str, dict[str, float]] | None, communication: dict[str, float] | None
) -> dict[str, float] | None:
    """Return the mean of each phase, without the communication in `backward`."""
    if phases is None:
        return None
    own_s = {phase: phases[phase]["mean_s"] for phase in schema.PHASES}
    if communication is not None:
        own_s["backward"] -= communication["mean_s"]
    return own_s


# --- Exposed communication


def exposed_communication(steps: Table, dropped: list[int]) -> dict[str, float] | None:
    """Return the time per step of communication that no computation hides; None if unknown."""
    known = [
        (exposed, took)
        for exposed, took, epoch in zip(
            steps["communication_s"], steps["step_s"], steps["epoch"], strict=True
        )
        if exposed is not None and epoch not in dropped
    ]
    if not known:
        return None
    values = sorted(exposed for exposed, _ in known)
    return {
        "share": sum(values) / sum(took for _, took in known),
        "mean_s": sum(values) / len(values),
        "median_s": quantile(values, 0.5),
        "p95_s": quantile(values, 0.95),
        "p99_s": quantile(values, 0.99),
    }

"""Which process of a distributed training holds up the others, and in what?

All ranks end a step together, because they exchange gradients in it: a slow one shows in the
waiting of the others, which is part of their `communication_s`. So ranks are compared by their own
time, a step without that, and `backward` without it too.
"""

from __future__ import annotations

from typing import Any

from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.table import Table
from stepscope.stats import quantile


def ranks_of(run: Run) -> list[Run]:
    """Return the ranks of a distributed run, each as a run; [] for any other.

    A run that went on in fewer processes keeps the folders of the others, which took no part in it
    lately and are left out. A script's run does not say how many there are.
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
    """Return what a distributed run's summary has beside any other's; {} for one process."""
    ranks = [_of_rank(rank) for rank in ranks_of(run)]
    if not ranks:
        return {}
    return {"ranks": ranks, "slowest_rank": slowest_by_phase(ranks)}


def slowest_by_phase(ranks: list[dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """Return for each phase the rank with the longest mean, and how long the others take.

    None where fewer than two ranks have phases.
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
    """Return the figures of a rank, as its own summary has them; None in one cut short."""
    summary, environment = rank.summary, rank.info.get("environment") or {}
    told = environment.get("distributed") or {}
    names = ("steps", "samples", "closure", "phases", "communication", "peak_memory_bytes")
    figures = {name: summary.get(name) for name in names}
    return {
        "rank": int(rank.path.name),
        "host": told.get("host") or environment.get("hostname"),
        "status": rank.status,
        "share": told.get("share"),
        **figures,
        "own_s": _own_s(figures["phases"], figures["communication"]),
    }


def _own_s(
    phases: dict[str, dict[str, float]] | None, communication: dict[str, float] | None
) -> dict[str, float] | None:
    """Return the mean of each phase, without the part of `backward` that waits for others."""
    if phases is None:
        return None
    own_s = {phase: phases[phase]["mean_s"] for phase in schema.PHASES}
    if communication is not None:
        own_s["backward"] -= communication["mean_s"]
    return own_s


# --- How much of a step is communication with nothing to hide behind?


def exposed_communication(steps: Table, dropped: list[int]) -> dict[str, float] | None:
    """Return how long steps communicate with nothing to hide it behind; None where unknown."""
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

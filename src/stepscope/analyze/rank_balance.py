"""Which rank of a distributed training slows down the others, and in which phase?

All ranks end a step together, so a slow rank shows in the communication of the others: ranks are
compared by their own time, without communication.
"""

from __future__ import annotations

from stepscope.analyze.phase_shares import distribution
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run, rank_folders
from stepscope.records.table import Table
from stepscope.records.types import PhaseTime, RankFigures, SlowestRank


def ranks_of(run: Run) -> list[Run]:
    """Return the ranks of a distributed run, without those of an earlier start with more."""
    processes = run.spec.get("processes")
    return [] if processes == 1 else [*map(load_run, rank_folders(run.path, processes))]


def slowest_by_phase(ranks: list[RankFigures]) -> dict[str, SlowestRank] | None:
    """Return the slowest rank of each phase, and the mean of the others; None without two ranks."""
    timed = [(rank, rank["own_s"]) for rank in ranks if rank["own_s"] is not None]
    if len(timed) < 2:
        return None
    slowest: dict[str, SlowestRank] = {}
    for phase in schema.PHASES:
        (first, longest_s), *others = sorted(
            ((rank, own_s[phase]) for rank, own_s in timed), key=lambda each: each[1], reverse=True
        )
        slowest[phase] = {
            "rank": first["rank"],
            "host": first["host"],
            "mean_s": longest_s,
            "others_mean_s": sum(mean_s for _, mean_s in others) / len(others),
        }
    return slowest


def figures_of_rank(rank: Run) -> RankFigures:
    """Return the figures of a rank from its summary; None if it was cut short."""
    summary, environment = rank.summary, rank.info.get("environment") or {}
    distributed = environment.get("distributed")
    phases, communication = summary.get("phases"), summary.get("communication")
    own_s = {phase: phases[phase]["mean_s"] for phase in schema.PHASES} if phases else None
    if own_s is not None and communication is not None:
        own_s["backward"] -= communication["mean_s"]
    return {
        "rank": int(rank.path.name),
        "host": distributed["host"] if distributed else environment.get("hostname"),
        "status": rank.status,
        "share": distributed["share"] if distributed else None,
        "steps": summary.get("steps"),
        "samples": summary.get("samples"),
        "accounted_share": summary.get("accounted_share"),
        "phases": phases,
        "communication": communication,
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
        "own_s": own_s,
    }


# --- Exposed communication


def blocking_communication(steps: Table, dropped: list[int]) -> PhaseTime | None:
    """Return the time per step of communication that no computation hides; None if unknown."""
    known = [
        (blocking, took)
        for blocking, took, epoch in zip(
            steps["communication_s"], steps["step_s"], steps["epoch"], strict=True
        )
        if blocking is not None and epoch not in dropped
    ]
    if not known:
        return None
    return distribution((blocking for blocking, _ in known), sum(took for _, took in known))

"""Findings on a distributed run: the straggler, and the cost of communication."""

from __future__ import annotations

from stepscope.analyze import rank_balance
from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.stats.intervals import median
from stepscope.units import format_duration, format_share

_MUCH_SLOWER = 0.1  # share of a step
_MUCH_COMMUNICATION = 0.2
_STEPS = 20


def straggler(view: RunView) -> Finding | None:
    """Report the rank that takes longer for its own work than the others, and its phase."""
    timed = [
        (rank, own_s)
        for rank in view.run.summary.get("ranks") or ()
        if (own_s := rank["own_s"]) is not None
    ]
    if len(timed) < 2 or len(view.step_s) < _STEPS:
        return None
    slow, slow_s = max(timed, key=lambda each: sum(each[1].values()))
    others = [own_s for rank, own_s in timed if rank is not slow]
    usual = {phase: median([own_s[phase] for own_s in others]) for phase in slow_s}
    excess = {phase: took_s - usual[phase] for phase, took_s in slow_s.items()}
    share = sum(excess.values()) / view.mean_step_s
    if share < _MUCH_SLOWER:
        return None
    phase = max(excess, key=lambda name: excess[name])
    where = f"rank {slow['rank']} on {slow['host'] or 'an unnamed host'}"
    return Finding(
        "straggler",
        f"All ranks wait for {where}: its own work takes {format_share(share)} of a step longer "
        f"than that of the others, mostly in `{phase}`.",
        (
            f"`{phase}`: {format_duration(slow_s[phase])} per step, "
            f"{format_duration(usual[phase])} on the other ranks",
            f"own work: {format_duration(sum(slow_s.values()))} per step, "
            f"{format_duration(sum(usual.values()))} on the other ranks (medians)",
        ),
        weight=min(1.0, share),
    )


def blocking_communication(view: RunView) -> Finding | None:
    """Report the time of gradient communication that no computation hides."""
    blocking = rank_balance.blocking_communication(view.run.steps, view.dropped)
    if blocking is None or blocking["share"] < _MUCH_COMMUNICATION or len(view.step_s) < _STEPS:
        return None
    return Finding(
        "blocking_communication",
        f"{format_share(blocking['share'])} of the time is gradient communication that no "
        "computation hides: the batch of each process is small for the gradients that it sends.",
        (
            f"{view.of_a_step(blocking['mean_s'])} on rank 0, including waiting for slower ranks",
            "a larger --batch-size, --accumulate or fewer --processes reduce this share",
        ),
        weight=blocking["share"],
    )

"""Findings on a distributed run: the rank that all others wait for, and the cost of exchange."""

from __future__ import annotations

from typing import Any

from stepscope.analyze.findings.finding import Finding
from stepscope.analyze.findings.run_view import Look
from stepscope.stats import median
from stepscope.units import format_duration, format_share

_MUCH_SLOWER = 0.1  # of the step, for each step
_MUCH_EXCHANGE = 0.2
_STEPS = 20


def straggler(look: Look) -> Finding | None:
    """Say which rank takes longer for its own work than the others, and in which phase."""
    ranks = [rank for rank in look.run.summary.get("ranks") or () if _own_s(rank) is not None]
    if len(ranks) < 2 or len(look.step_s) < _STEPS:
        return None
    slow = max(ranks, key=lambda rank: sum(_own_s(rank).values()))
    others = [rank for rank in ranks if rank is not slow]
    usual = {phase: median([_own_s(rank)[phase] for rank in others]) for phase in _own_s(slow)}
    excess = {phase: took_s - usual[phase] for phase, took_s in _own_s(slow).items()}
    share = sum(excess.values()) / (sum(look.step_s) / len(look.step_s))
    if share < _MUCH_SLOWER:
        return None
    phase = max(excess, key=lambda name: excess[name])
    where = f"rank {slow['rank']} on {slow['host'] or 'an unnamed host'}"
    return Finding(
        "straggler",
        f"All ranks wait for {where}: its own work takes {format_share(share)} of a step longer "
        f"than that of the others, mostly in `{phase}`.",
        (
            f"`{phase}`: {format_duration(_own_s(slow)[phase])} a step there, "
            f"{format_duration(usual[phase])} on the others",
            f"own work of a step: {format_duration(sum(_own_s(slow).values()))} there, "
            f"{format_duration(sum(usual.values()))} on the others (medians over ranks)",
        ),
        None,
        min(1.0, share),
    )


def exposed_exchange(look: Look) -> Finding | None:
    """Say how much of the time gradients travel with nothing to compute meanwhile."""
    known = [value for value in look.column("communication_s") if value is not None]
    if len(known) < _STEPS:
        return None
    share = sum(known) / sum(look.step_s)
    if share < _MUCH_EXCHANGE:
        return None
    mean_s = sum(known) / len(known)
    return Finding(
        "exposed_exchange",
        f"{format_share(share)} of the time goes into exchanging gradients, with nothing left to "
        "compute meanwhile: the part of each process is small for what it has to send.",
        (
            f"{format_duration(mean_s)} of a step of {format_duration(look.median_s)}, on rank 0; "
            "waiting for a slower rank is in it",
            "a larger --batch-size, --accumulate, or fewer --processes make it a smaller part",
        ),
        None,
        share,
    )


def _own_s(rank: dict[str, Any]) -> Any:
    return rank.get("own_s")

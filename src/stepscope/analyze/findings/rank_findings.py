"""Findings on a distributed run: the straggler, and the cost of communication."""

from __future__ import annotations

from typing import Any

from stepscope.analyze.findings.finding import Finding
from stepscope.analyze.findings.run_view import RunView
from stepscope.stats import median
from stepscope.units import format_duration, format_share

_MUCH_SLOWER = 0.1  # share of a step
_MUCH_EXCHANGE = 0.2
_STEPS = 20


def straggler(view: RunView) -> Finding | None:
    """Report the rank that takes longer for its own work than the others, and its phase."""
    ranks = [rank for rank in view.run.summary.get("ranks") or () if _own_s(rank) is not None]
    if len(ranks) < 2 or len(view.step_s) < _STEPS:
        return None
    slow = max(ranks, key=lambda rank: sum(_own_s(rank).values()))
    others = [rank for rank in ranks if rank is not slow]
    usual = {phase: median([_own_s(rank)[phase] for rank in others]) for phase in _own_s(slow)}
    excess = {phase: took_s - usual[phase] for phase, took_s in _own_s(slow).items()}
    share = sum(excess.values()) / (sum(view.step_s) / len(view.step_s))
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


def exposed_communication(view: RunView) -> Finding | None:
    """Report the time of gradient communication that no computation hides."""
    known = [value for value in view.column("communication_s") if value is not None]
    if len(known) < _STEPS:
        return None
    share = sum(known) / sum(view.step_s)
    if share < _MUCH_EXCHANGE:
        return None
    mean_s = sum(known) / len(known)
    return Finding(
        "exposed_exchange",
        f"{format_share(share)} of the time goes into exchanging gradients, with nothing left to "
        "compute meanwhile: the part of each process is small for what it has to send.",
        (
            f"{format_duration(mean_s)} of a step of {format_duration(view.median_s)}, on rank 0; "
            "waiting for a slower rank is in it",
            "a larger --batch-size, --accumulate, or fewer --processes make it a smaller part",
        ),
        None,
        share,
    )


def _own_s(rank: dict[str, Any]) -> Any:
    return rank.get("own_s")

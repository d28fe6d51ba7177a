"""What does measuring cost? Blocks of steps without detail against their neighbours."""

from __future__ import annotations

from itertools import groupby

from stepscope.records import schema
from stepscope.records.table import Table
from stepscope.records.types import OffBlockCost
from stepscope.stats import median, quantile

NEIGHBOURS = 20
LEAST_BLOCKS = 5


def cost_by_off_blocks(steps: Table) -> OffBlockCost | None:
    """Compare each block with its neighbours of full detail; None with too few blocks."""
    step_s, details = steps["step_s"], steps["detail"]
    differences, shares, at = [], [], 0
    for detail, block in groupby(details):
        begin, at = at, at + len(list(block))
        if detail != schema.OFF:
            continue
        neighbours = [
            *range(max(0, begin - NEIGHBOURS), begin),
            *range(at, min(at + NEIGHBOURS, len(steps))),
        ]
        beside = [step_s[near] for near in neighbours if details[near] == schema.FULL]
        if len(beside) >= NEIGHBOURS:
            without_s = median(step_s[begin:at])
            differences.append(median(beside) - without_s)
            shares.append(differences[-1] / without_s)
    if len(differences) < LEAST_BLOCKS:
        return None
    ordered = sorted(differences)
    return {
        "blocks": len(differences),
        "overhead_per_step_s": quantile(ordered, 0.5),
        "low_s": quantile(ordered, 0.25),
        "high_s": quantile(ordered, 0.75),
        "overhead_share": median(shares),
    }

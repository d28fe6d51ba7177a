"""How throttling looks in a line: how many steps, how much of the time, what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.units import format_share


def about_throttling(throttling: Mapping[str, Any]) -> str:
    """Say how many steps were throttled, and how much longer they took, as `summary` has it."""
    if not throttling["steps"]:
        return f"none, by {', '.join(throttling['watched'])}"
    share = throttling["share_of_time"]
    told = f"{throttling['steps']:,} steps"
    if share is not None:
        told += f", {format_share(share)} of the time"
    cost = throttling["slowdown"]
    if cost is None:
        return told
    told += f", take {cost['ratio']:.2f} times as long as the others"
    if cost["low"] is None:
        return told
    return f"{told} (95 %: {cost['low']:.2f} to {cost['high']:.2f})"

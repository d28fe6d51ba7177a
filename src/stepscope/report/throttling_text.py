"""Throttling as one line: steps, share of the time, and slowdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.units import format_share


def about_throttling(throttling: Mapping[str, Any]) -> str:
    """Return one line on the throttled steps and their slowdown, from the summary."""
    if not throttling["steps"]:
        return f"none, by {', '.join(throttling['watched'])}"
    share = throttling["share_of_time"]
    text = f"{throttling['steps']:,} steps"
    if share is not None:
        text += f", {format_share(share)} of the time"
    cost = throttling["slowdown"]
    if cost is None:
        return text
    text += f", take {cost['ratio']:.2f} times as long as the others"
    if cost["low"] is None:
        return text
    return f"{text} (95 %: {cost['low']:.2f} to {cost['high']:.2f})"

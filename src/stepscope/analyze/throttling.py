"""When did the machine hold itself back, and which steps were touched by it?"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.records.reader import Run


@dataclass(frozen=True)
class Held:
    """A time in which the machine was held back; without an end it went on to the run's."""

    what: str
    from_s: float
    to_s: float
    figures: dict[str, Any]


def times_held_back(run: Run) -> list[Held]:
    """List the times of throttling, by when they began."""
    found: list[Held] = []
    going_on: dict[str, dict[str, Any]] = {}
    for event in run.events:
        kind, what = event.get("event"), str(event.get("what"))
        if kind == "throttling":
            going_on.setdefault(what, event)
        elif kind == "throttling_ended" and what in going_on:
            found.append(_held(what, going_on.pop(what), event["time_s"]))
    found += [_held(what, event, float("inf")) for what, event in going_on.items()]
    return sorted(found, key=lambda each: each.from_s)


def touched(start_s: Sequence[float], step_s: Sequence[float], held: Sequence[Held]) -> list[bool]:
    """Say of each step whether it fell into such a time, in part or as a whole."""
    merged = _merged(held)
    ends_s = [to_s for _, to_s in merged]
    marked = []
    for began_s, took_s in zip(start_s, step_s, strict=True):
        first = bisect_right(ends_s, began_s)  # the first time that ends after the step begins
        marked.append(first < len(merged) and merged[first][0] < began_s + took_s)
    return marked


def _merged(held: Sequence[Held]) -> list[tuple[float, float]]:
    """Put times together that overlap; return from when to when, in their order."""
    merged: list[tuple[float, float]] = []
    for each in sorted(held, key=lambda time: time.from_s):
        to_s = max(each.from_s, each.to_s)  # what a resumed run ended may lie before
        if merged and each.from_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to_s))
        else:
            merged.append((each.from_s, to_s))
    return merged


def _held(what: str, began: dict[str, Any], to_s: float) -> Held:
    figures = {name: began[name] for name in began if name not in ("event", "time_s", "what")}
    return Held(what, began["time_s"], to_s, figures)

"""When a run was throttled, by its events, and which steps that affected."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Held:
    """A period of throttling; without an end it lasted until the end of the run."""

    what: str
    from_s: float
    to_s: float
    figures: dict[str, Any]


def what_was_watched(events: Iterable[Mapping[str, Any]]) -> list[str] | None:
    """Return the sources that were watched for throttling; None if none were."""
    found: dict[str, None] | None = None
    for event in events:
        # Older records only have the second.
        if event.get("event") in ("throttling_watched", "throttling"):
            what = event.get("what")
            found = (found or {}) | dict.fromkeys(what if isinstance(what, list) else [what])
    return None if found is None else [str(what) for what in found]


def times_held_back(events: Iterable[Mapping[str, Any]]) -> list[Held]:
    """Return the periods of throttling, by their start.

    A period that was open at a kill ends at the resume, as nothing was watched in between.
    """
    found: list[Held] = []
    going_on: dict[str, Mapping[str, Any]] = {}
    resumed_s: list[float] = []
    for event in events:
        kind, what, time_s = event.get("event"), str(event.get("what")), event.get("time_s")
        if not isinstance(time_s, int | float) or not math.isfinite(time_s):
            continue
        if kind == "throttling":
            going_on.setdefault(what, event)
        elif kind == "throttling_ended" and what in going_on:
            found.append(_held(going_on.pop(what), time_s))
        elif kind == "resume":
            found += [_held(each, time_s) for each in going_on.values()]
            going_on.clear()
            resumed_s.append(time_s)
    for each in going_on.values():  # events of a rank may be written after the resume
        later_s = [time_s for time_s in resumed_s if time_s > each["time_s"]]
        found.append(_held(each, min(later_s, default=math.inf)))
    return sorted(found, key=lambda each: each.from_s)


def touched(
    start_s: Sequence[float | None], step_s: Sequence[float | None], held: Sequence[Held]
) -> list[bool | None]:
    """Return for each step whether it overlaps a period of throttling.

    None if the start of the step is unknown.
    """
    merged = _merged(held)
    if not merged:
        return [False] * len(start_s)
    ends_s = [to_s for _, to_s in merged]
    marked: list[bool | None] = []
    for began_s, took_s in zip(start_s, step_s, strict=True):
        if began_s is None or took_s is None:
            marked.append(None)
            continue
        first = bisect_right(ends_s, began_s)  # the first period that ends after the step begins
        marked.append(first < len(merged) and merged[first][0] < began_s + took_s)
    return marked


def _merged(held: Sequence[Held]) -> list[tuple[float, float]]:
    """Merge overlapping periods; return their starts and ends, in order."""
    merged: list[tuple[float, float]] = []
    for each in sorted(held, key=lambda time: time.from_s):
        to_s = max(each.from_s, each.to_s)  # a clock went back
        if merged and each.from_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to_s))
        else:
            merged.append((each.from_s, to_s))
    return merged


def _held(began: Mapping[str, Any], to_s: float) -> Held:
    figures = {name: began[name] for name in began if name not in ("event", "time_s", "what")}
    return Held(str(began.get("what")), began["time_s"], to_s, figures)

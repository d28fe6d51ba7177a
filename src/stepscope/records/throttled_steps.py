"""When a run was throttled, by its events, and which steps that affected."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.records.types import RunEvent, ThrottlingEvent


@dataclass(frozen=True)
class ThrottledTime:
    """A period of throttling; without an end it lasted until the end of the run."""

    began: ThrottlingEvent
    to_s: float

    @property
    def from_s(self) -> float:
        """When it began."""
        return self.began["time_s"]


def watched_sources(events: Iterable[RunEvent]) -> list[str] | None:
    """Return the sources that were watched for throttling; None if none were."""
    found: dict[str, None] | None = None
    for event in events:
        if event["event"] == "throttling_watched":
            found = (found or {}) | dict.fromkeys(event["what"])
    return None if found is None else list(found)


def throttled_times(events: Iterable[RunEvent]) -> list[ThrottledTime]:
    """Return the periods of throttling, by their start.

    A period that was open at a kill ends at the resume, as nothing was watched in between.
    """
    found: list[ThrottledTime] = []
    going_on: dict[str, ThrottlingEvent] = {}
    resumed_s: list[float] = []
    for event in events:
        if event["event"] == "throttling":
            going_on.setdefault(event["what"], event)
        elif event["event"] == "throttling_ended" and event["what"] in going_on:
            found.append(ThrottledTime(going_on.pop(event["what"]), event["time_s"]))
        elif event["event"] == "resume":
            found += [ThrottledTime(each, event["time_s"]) for each in going_on.values()]
            going_on.clear()
            resumed_s.append(event["time_s"])
    for each in going_on.values():  # events of a rank may be written after the resume
        later_s = [time_s for time_s in resumed_s if time_s > each["time_s"]]
        found.append(ThrottledTime(each, min(later_s, default=math.inf)))
    return sorted(found, key=lambda each: each.from_s)


def mark_throttled(
    start_s: Sequence[float | None],
    step_s: Sequence[float | None],
    throttled: Sequence[ThrottledTime],
) -> list[bool | None]:
    """Return for each step whether it overlaps a period of throttling."""
    merged = _merged(throttled)
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


def _merged(throttled: Sequence[ThrottledTime]) -> list[tuple[float, float]]:
    """Merge overlapping periods; return their starts and ends, in order."""
    merged: list[tuple[float, float]] = []
    for each in sorted(throttled, key=lambda time: time.from_s):
        to_s = max(each.from_s, each.to_s)  # a clock went back
        if merged and each.from_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to_s))
        else:
            merged.append((each.from_s, to_s))
    return merged

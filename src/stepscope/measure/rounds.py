"""Steps that go like one before: known by their events, and taken at once.

Nearly every step of a training is the same calls of the same objects in the same order. What such a
step means was found out event by event when it came for the first time; after that only its times,
its batch and its loss are new. That halves what settling costs, and changes nothing else: the rows
are the same without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.measure import events as e

_PHASES_ALONE = frozenset({e.MOVE, e.MOVED, e.ZERO, e.ZEROED})
_PLAIN = [
    *(e.FETCH, e.FETCHED, e.CALL, e.CALLED),
    *(e.BACKWARD, e.BACKWARD_DONE, e.STEP, e.STEPPED),
]


class Round:
    """The events of a plain step: one batch, one call, one backward pass, one update.

    `phases` are those that were open after each event; `call` and `backward_done` say which events
    those are.
    """

    def __init__(self, events: Sequence[e.Event], phases: Sequence[int]) -> None:
        self.kinds, _, self.subjects, _, self.marks = zip(*events, strict=True)
        self.phases = tuple(phases)
        self.call = self.kinds.index(e.CALL)
        self.backward_done = self.kinds.index(e.BACKWARD_DONE)
        self.key: Any = self.subjects[0]
        self.optimizer: Any = self.subjects[self.kinds.index(e.STEP)]

    def find(
        self, events: Sequence[e.Event], begin: int
    ) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
        """Return times and details from `begin` on, if it is this again and then comes a fetch."""
        end = begin + len(self.kinds)
        if end >= len(events) or events[end][0] != e.FETCH:
            return None
        kinds, times_ns, subjects, details, marks = zip(*events[begin:end], strict=True)
        again = kinds == self.kinds and subjects == self.subjects and marks == self.marks
        with_gradients = again and details[self.call][0]
        return (times_ns, details) if with_gradients else None


def plain_round(events: Sequence[e.Event], phases: Sequence[int]) -> Round | None:
    """Return what the events of a step are as a round, or None where they are no plain step."""
    kinds = [event[0] for event in events]
    if [kind for kind in kinds if kind not in _PHASES_ALONE] != _PLAIN:
        return None
    first, second, last = events[0], events[1], events[-1]
    is_one_batch = (first[0], second[0]) == (e.FETCH, e.FETCHED) and first[2] == second[2]
    called = events[kinds.index(e.CALLED)]
    is_on_host = all(event[4] is None for event in events)
    is_plain = is_one_batch and last[0] == e.STEPPED and called[2] is True and is_on_host
    return Round(events, phases) if is_plain else None

"""Steps that go like one before: known by their events, and taken many at once.

Nearly every step of a training is the same calls of the same objects in the same order. What such a
step means was found out event by event when it came for the first time; after that only its times,
its batch and its loss are new. Taken column by column, many of them cost a third of what they
would cost one by one, and nothing else changes: the rows are the same without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Any

from stepscope.measure import events as e
from stepscope.measure.calls import Calls
from stepscope.measure.rows import OTHER
from stepscope.measure.spans import Batch, Loss

_PHASES_ALONE = frozenset({e.MOVE, e.MOVED, e.ZERO, e.ZEROED})
_BEFORE_CALLS = [e.FETCH, e.FETCHED]
_AFTER_CALLS = [e.BACKWARD, e.BACKWARD_DONE, e.STEP, e.STEPPED]
_WITHOUT_DETAIL = [e.FETCH, e.FETCHED, e.STEP, e.STEPPED]
_FETCHED = 1
_Called = tuple[int, Sequence[tuple[bool, bool, int | None, int]]]


@dataclass(slots=True, frozen=True)
class Rounds:
    """Plain steps that followed each other, field by field.

    `begins_ns` has one moment more than there are steps: the fetch that ends the last. What was
    spent is by phase; `batches` are as they were fetched; `calls` are modules in their order, and
    how each was called; `samples` are those of the batch or, where they are not known, of a call.
    """

    begins_ns: Sequence[int]
    spent: Sequence[Sequence[int]]
    batches: Sequence[Batch]
    calls: Sequence[_Called]
    samples: Sequence[int]
    losses: Sequence[Loss | None]
    updated_ns: Sequence[int]
    updated_other_ns: Sequence[int]

    def __len__(self) -> int:
        return len(self.batches)


class Round:
    """The events of a plain step: one batch, calls, one backward pass, one update.

    Most have two calls, of the model and of the loss. Without detail calls and the backward pass
    are not noted. `phases` are those that were open after each event.
    """

    def __init__(self, events: Sequence[e.Event], phases: Sequence[int]) -> None:
        kinds, _, subjects, _, marks = zip(*events, strict=True)
        self._kinds, self._subjects, self._marks = list(kinds), list(subjects), list(marks)
        self._phases = tuple(phases)
        self.events = len(events)
        self._calls = [place for place, kind in enumerate(kinds) if kind == e.CALL]
        self.has_detail = bool(self._calls)
        self._backward_done = self._kinds.index(e.BACKWARD_DONE) if self.has_detail else 0
        self.key: Any = self._subjects[0]
        self.optimizer: Any = self._subjects[self._kinds.index(e.STEP)]

    def find(self, columns: Sequence[list[Any]], begin: int, before: Calls) -> Rounds | None:
        """Return all of it that comes from `begin` on, one after the other; the last ends there.

        `columns` are the fields of all events, `before` are calls that came earlier. A round is
        complete when a fetch follows it.
        """
        kinds, times_ns, subjects, details, marks = columns
        wide = self.events
        # Subjects first: in a step of another loader or optimiser already the first is another.
        rounds = _repeats(subjects, self._subjects, begin, (len(kinds) - 1 - begin) // wide)
        rounds = _repeats(kinds, self._kinds, begin, rounds)
        rounds = _repeats(marks, self._marks, begin, rounds)
        for place in self._calls:
            calls_here = details[begin + place : begin + rounds * wide : wide]
            with_gradients = [call[0] for call in calls_here]
            if not all(with_gradients):
                rounds = with_gradients.index(False)
        end = begin + rounds * wide
        if rounds and kinds[end] != e.FETCH:
            rounds, end = rounds - 1, end - wide
        if not rounds:
            return None
        moments = [times_ns[begin + event : end + 1 : wide] for event in range(wide)]
        begins_ns, updated_ns = moments[0], moments[-1]
        following = [*moments[1:], begins_ns[1:]]
        batches = details[begin + _FETCHED : end : wide]
        calls = [
            (subjects[begin + place], details[begin + place : end : wide]) for place in self._calls
        ]
        losses = details[begin + self._backward_done : end : wide]
        return Rounds(
            begins_ns,
            _by_phase([*self._phases[:-1], OTHER], moments, following),
            batches,
            calls,
            samples=_samples(batches, calls, before),
            losses=losses if self.has_detail else [None] * rounds,
            updated_ns=updated_ns,
            updated_other_ns=details[begin + wide - 1 : end : wide],
        )


def _samples(batches: Sequence[Batch], calls: Sequence[_Called], before: Calls) -> list[int]:
    """Return how many samples each step has: those of its batch, or of a call where none tells."""
    known = [samples for samples, _ in batches if samples is not None]
    if len(known) == len(batches):
        return known
    told, counted = before.copy(), []
    for number, (samples, _) in enumerate(batches):
        for module, each in calls:
            _, training, called_with, _ = each[number]
            told.take(module, training, called_with)
        called = told.end()
        counted.append((called or 0) if samples is None else samples)
    return counted


def _repeats(column: list[Any], pattern: list[Any], begin: int, most: int) -> int:
    """Count how often a pattern comes one after the other from `begin` on, at most so often.

    Ever longer stretches are compared at once, until one is not equal, and then ever shorter ones:
    a pattern that does not come costs one comparison. At its end one or two may be left uncounted.
    """
    wide, found, asked, grows = len(pattern), 0, 1, True
    while asked and found < most:
        asked = min(asked, most - found)
        at = begin + found * wide
        if column[at : at + asked * wide] == pattern * asked:
            found += asked
        else:
            grows = False
        asked = asked * 2 if grows else asked // 2
    return found


def _by_phase(
    phases: Sequence[int], begins: Sequence[Sequence[int]], ends: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return by phase what each step spent in it."""
    steps = len(ends[-1])
    spent: list[list[int]] = [[] for _ in range(OTHER + 1)]
    for phase, begin, end in zip(phases, begins, ends, strict=True):
        took: Iterator[int] = map(sub, end, begin)
        spent[phase] = list(map(add, spent[phase], took)) if spent[phase] else list(took)
    return [each or [0] * steps for each in spent]


def plain_round(events: Sequence[e.Event], phases: Sequence[int]) -> Round | None:
    """Return what the events of a step are as a round, or None where they are no plain step."""
    kinds = [event[0] for event in events]
    if kinds != _WITHOUT_DETAIL and not _is_plain([k for k in kinds if k not in _PHASES_ALONE]):
        return None
    first, second, last = events[0], events[1], events[-1]
    is_one_batch = (first[0], second[0]) == (e.FETCH, e.FETCHED) and first[2] == second[2]
    is_called = all(subject is True for kind, _, subject, *_ in events if kind == e.CALLED)
    is_on_host = all(event[4] is None for event in events)
    is_plain = is_one_batch and last[0] == e.STEPPED and is_called and is_on_host
    return Round(events, phases) if is_plain else None


def _is_plain(kinds: list[int]) -> bool:
    before, after = len(_BEFORE_CALLS), len(_AFTER_CALLS)
    calls = kinds[before:-after]
    is_called = bool(calls) and calls == [e.CALL, e.CALLED] * (len(calls) // 2)
    return kinds == [*_BEFORE_CALLS, *calls, *_AFTER_CALLS] and is_called

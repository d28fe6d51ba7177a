"""Fast path for steps that repeat an earlier one.

Nearly every step of a training makes the same calls on the same objects in the same order. The
first such step is interpreted event by event; in later ones only the times, the batch and the loss
are new. Processing many of them column by column costs a third of processing them one by one, and
gives the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from typing import Any

from stepscope.meter.step_rows import FORWARD, OTHER, Load, load_of_step
from stepscope.trace import event_buffer as e
from stepscope.trace.detect.epochs import EpochTracker
from stepscope.trace.detect.pending_batches import ModelCalls
from stepscope.trace.detect.spans import Batch, Phases, Step, read_losses

# A letter for each event, upper case where a span begins; spans that are only a phase have none. A
# plain step is one of: batches with a backward pass each, then an update; a batch, then several
# updates, each by another optimiser (a GAN); an update with a closure that holds the backward pass,
# as in Lightning; a step without detail.
_LETTERS = {
    **dict.fromkeys((e.MOVE, e.MOVED, e.ZERO, e.ZEROED), ""),
    e.FETCH: "F",
    e.FETCHED: "f",
    e.CALL: "C",
    e.CALLED: "c",
    e.BACKWARD: "B",
    e.BACKWARD_DONE: "b",
    e.STEP: "S",
    e.STEPPED: "s",
}
_PLAIN = re.compile("(Ff(Cc)+Bb)+Ss|Ff(((Cc)+Bb)+Ss)+|FfS(Cc)+Bbs")
LONGEST_STEP = 2000  # events of a step that can be a pattern
_WITHOUT_DETAIL = [e.FETCH, e.FETCHED, e.STEP, e.STEPPED]


@dataclass(slots=True, frozen=True)
class RepeatedSteps:
    """Consecutive repeats of a pattern, as columns.

    `begins_ns` has one entry more than there are steps: the fetch that ends the last one. `spent`
    is by phase. `batches` has a column for each fetch of a step. `learned` has the calls and
    backward passes in their order: a module and the fields of its calls, or None and the losses.
    `samples` are those of the batches or, where unknown, of a call, or None.
    """

    begins_ns: Sequence[int]
    spent: Sequence[Sequence[int]]
    batches: Sequence[Sequence[Batch]]
    learned: Sequence[tuple[int | None, Sequence[Any]]]
    samples: Sequence[int | None]

    def __len__(self) -> int:
        return len(self.samples)

    def losses(self) -> list[float | None]:
        """Read the losses of the steps."""
        columns = [each for module, each in self.learned if module is None]
        if not columns:
            return [None] * len(self)
        if len(columns) == 1:
            return [loss if type(loss) is float else read_losses([loss]) for loss in columns[0]]
        return [read_losses(each) for each in zip(*columns, strict=True)]

    def loads(self) -> list[Load | None]:
        """Return the load timings of the steps."""
        if len(self.batches) == 1:
            return [load for _, load in self.batches[0]]
        return [
            load_of_step([load for _, load in each if load is not None], origin_ns=0)
            for each in zip(*self.batches, strict=True)
        ]


class StepPattern:
    """The events of a plain step, and the phase that was open after each."""

    def __init__(self, events: Sequence[e.Event], phases: Sequence[int]) -> None:
        kinds, _, subjects, _, marks = zip(*events, strict=True)
        self._kinds, self._subjects, self._marks = list(kinds), list(subjects), list(marks)
        self._phases = _with_forward(kinds, phases)
        self.events = len(events)
        self._fetched = self._places(e.FETCHED)
        self._calls = self._places(e.CALL)
        self._learned = sorted((*self._calls, *self._places(e.BACKWARD_DONE)))
        self.batches = len(self._fetched)
        self.key: Any = self._subjects[0]
        self.optimizers = {self._subjects[place] for place in self._places(e.STEP)}

    def _places(self, kind: int) -> list[int]:
        return [place for place, each in enumerate(self._kinds) if each == kind]

    def find(
        self, columns: Sequence[list[Any]], begin: int, before: ModelCalls
    ) -> RepeatedSteps | None:
        """Return the consecutive repeats of the pattern from `begin` on, or None.

        `columns` are the fields of all events, `before` the calls that came earlier. The last
        repeat is left out.
        """
        kinds, times_ns, subjects, details, marks = columns
        wide = self.events
        # Subjects first: with another loader or optimiser, the first one differs already.
        repeats = _count_repeats(subjects, self._subjects, begin, (len(kinds) - 1 - begin) // wide)
        repeats = _count_repeats(kinds, self._kinds, begin, repeats)
        repeats = _count_repeats(marks, self._marks, begin, repeats)
        for place in self._calls:
            calls_here = details[begin + place : begin + repeats * wide : wide]
            with_gradients = [call[0] for call in calls_here]
            if not all(with_gradients):
                repeats = with_gradients.index(False)
        repeats -= 1  # the last one
        end = begin + repeats * wide
        if repeats < 1:
            return None
        moments = [times_ns[begin + event : end + 1 : wide] for event in range(wide)]
        begins_ns = moments[0]
        following = [*moments[1:], begins_ns[1:]]
        batches = [details[begin + place : end : wide] for place in self._fetched]
        learned = [
            (subjects[begin + place], details[begin + place : end : wide])
            for place in self._learned
        ]
        samples = _samples(batches, learned, before)
        if samples is None:
            return None
        return RepeatedSteps(
            begins_ns,
            _by_phase([*self._phases[:-1], OTHER], moments, following),
            batches,
            learned,
            samples,
        )


def _with_forward(kinds: Sequence[int], phases: Sequence[int]) -> list[int]:
    """Assign the time between a call and the backward pass to the forward pass.

    After an earlier backward pass of the step, this was known only when the next one began.
    """
    phases, called = list(phases), None
    for place, kind in enumerate(kinds):
        if kind == e.CALLED and called is None:
            called = place
        elif kind == e.BACKWARD and called is not None:
            between = [FORWARD if phase == OTHER else phase for phase in phases[called:place]]
            phases[called:place] = between
            called = None
    return phases


def _samples(
    batches: Sequence[Sequence[Batch]],
    learned: Sequence[tuple[int | None, Sequence[Any]]],
    before: ModelCalls,
) -> Sequence[int | None] | None:
    """Return the samples of each step: those of its batches or, where unknown, of a call.

    Return None where they must be determined step by step: several batches of unknown size.
    """
    known = [[samples for samples, _ in each if samples is not None] for each in batches]
    if all(len(each) == len(batches[0]) for each in known):
        return known[0] if len(known) == 1 else [sum(each) for each in zip(*known, strict=True)]
    calls = [(module, each) for module, each in learned if module is not None]
    if len(learned) - len(calls) > 1:
        return None
    calls_so_far = before.copy()
    counted: list[int | None] = []
    for number, (samples, _) in enumerate(batches[0]):
        for module, each in calls:
            _, training, called_with = each[number]
            calls_so_far.take(module, training, called_with)
        called = calls_so_far.end()
        counted.append(called if samples is None else samples)
    return counted


def _count_repeats(column: list[Any], pattern: list[Any], begin: int, most: int) -> int:
    """Count consecutive repeats of a pattern from `begin` on, up to `most`.

    Compare ever longer stretches until one differs, then ever shorter ones: a pattern that does not
    occur costs one comparison. One or two repeats at the end may be left uncounted.
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
    """Return the time of each step by phase."""
    steps = len(ends[-1])
    spent: list[list[int]] = [[] for _ in range(OTHER + 1)]
    for phase, begin, end in zip(phases, begins, ends, strict=True):
        took: Iterator[int] = map(sub, end, begin)
        spent[phase] = list(map(add, spent[phase], took)) if spent[phase] else list(took)
    return [each or [0] * steps for each in spent]


def pattern_of(events: Sequence[e.Event], phases: Sequence[int]) -> StepPattern | None:
    """Return the pattern of a step's events, or None if the step is not plain."""
    kinds = [event[0] for event in events]
    if len(events) > LONGEST_STEP:
        return None
    letters = "".join(_LETTERS.get(kind, "?") for kind in kinds)
    if kinds != _WITHOUT_DETAIL and not _PLAIN.fullmatch(letters):
        return None
    key = events[0][2]
    is_of_one = all(event[2] == key for event in events if event[0] in (e.FETCH, e.FETCHED))
    is_called = all(event[2] is True for event in events if event[0] == e.CALLED)
    is_on_host = all(event[4] is None for event in events)
    updates = [event[2] for event in events if event[0] == e.STEP]
    is_once_each = len(set(updates)) == len(updates)
    is_plain = is_of_one and is_called and is_on_host and is_once_each
    return StepPattern(events, phases) if is_plain else None


@dataclass(slots=True)
class FastPath:
    """Takes the steps that repeat the last plain one, many at once.

    `events` are those of the current step, `phases_after` the phase that was open after each.
    """

    tracker: EpochTracker
    phases: Phases
    calls: ModelCalls
    events: list[e.Event] = field(default_factory=list)
    phases_after: list[int] = field(default_factory=list)
    _pattern: StepPattern | None = None

    def take(self, columns: Sequence[list[Any]], begin: int) -> int:
        """Process the repeats from a fetch on; return the number of their events, or 0.

        The last one is left to the detector: what follows may still belong to it.
        """
        tracker = self.tracker
        step = tracker.step
        is_inside = tracker.tail is None and step is not None and step.batches
        if is_inside and len(self.events) <= LONGEST_STEP:  # a step of several batches
            return 0
        if self.events:
            self._pattern = pattern_of(self.events, self.phases_after) or self._pattern
            self.events.clear()
            self.phases_after.clear()
        known = self._pattern
        found = known and known.find(columns, begin, self.calls)
        if not known or not found or not self._end_step(known, found.begins_ns[0]):
            return 0
        epoch = tracker.epoch
        assert epoch is not None
        tracker.release_completed()
        tracker.steps += len(found)
        tracker.updates += len(found) * len(known.optimizers)
        tracker.rows.repeats(found, epoch, tracker.detail)
        if epoch.batches_left:
            epoch.batches_left = max(0, epoch.batches_left - len(found) * known.batches)
        tracker.now_ns = found.begins_ns[-1]
        tracker.step = Step(tracker.now_ns, tracker.detail)
        self.phases.reset()
        tracker.pending.single_use.clear()
        return len(found) * known.events

    def _end_step(self, known: StepPattern, time_ns: int) -> bool:
        """End the step at a fetch of the only loader; return False if anything else is open."""
        tracker = self.tracker
        epoch, tail, step, pending = tracker.epoch, tracker.tail, tracker.step, tracker.pending
        if epoch is None or tail is None or step is None or tracker.candidates:
            return False
        # Without a backward pass the step takes all pending batches, unless it is an epoch's first.
        takes_all = not step.backwards and not tracker.is_first_step
        is_ahead = pending.ahead or (pending and not takes_all)
        if epoch.first_key != known.key or epoch.keys != {known.key} or is_ahead:
            return False
        tail.spent[self.phases.now] += time_ns - tracker.now_ns
        tracker.now_ns = time_ns
        tracker.end_step_at(time_ns)
        return True

"""Telling who acts from who tests.

In a game, or for a robot, a network is called with one sample to find out what to learn next, after
every update. Once such a call may be a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepscope.meter.step_rows import OTHER
from stepscope.trace.detect import events as e
from stepscope.trace.detect.communication_time import Exposed
from stepscope.trace.detect.epochs import Course
from stepscope.trace.detect.fast_path import LONGEST_STEP, RepeatedSteps, Round, plain_round
from stepscope.trace.detect.model_calls import Calls
from stepscope.trace.detect.phases import Phases
from stepscope.trace.detect.row_builder import Finished, Sink
from stepscope.trace.detect.spans import Aside, Batch, Moment, Step

if TYPE_CHECKING:
    from stepscope.meter.device_timeline import DeviceMark


@dataclass(slots=True)
class Acting:
    """After which update the network was last called with one sample."""

    _after: int = -1
    _acts: bool = False

    def is_usual(self, updates: int) -> bool:
        """Take such a call, after so many updates; say whether one came before the last too."""
        if self._after < updates:
            self._acts = self._after == updates - 1
            self._after = updates
        return self._acts


# --- What a step is, found out from what hooks saw: events in, rows of steps and epochs out


_ENTER = frozenset({e.MOVE, e.ZERO, e.OWN})
_LEAVE = frozenset({e.MOVED, e.ZEROED, e.OWN_DONE})
# A call so long before the next one, with no backward pass between them, was made to try the model.
_TRIAL_BEFORE_NS = 100_000_000
# What may come between the end of an evaluation's loader and the end of its last batch.
_MAY_BE_LATE = frozenset({e.MOVE, e.MOVED, e.CALL, e.CALLED, e.OWN, e.OWN_DONE})


@dataclass(slots=True)
class Recognizer:
    """Take events in the order in which they happened; give rows to the sink."""

    sink: Sink
    origin_ns: int
    exposed: Exposed = field(default_factory=Exposed)
    updates: int = 0

    _finished: Finished = field(init=False)
    _course: Course = field(init=False)
    _phases: Phases = field(default_factory=Phases)
    _mark: DeviceMark | None = None
    _calls: Calls = field(default_factory=Calls)
    _module: int | None = None  # the one that is called, or was called last
    _samples_trained: int | None = None
    _called_ns: int = 0
    _made_ns: int = 0
    _call_is_aside: bool = False
    _backward_ns: int = 0
    _fetch_ns: int = 0
    _at_fetch: tuple[Step, Moment] | None = None
    _iterations: dict[int, e.Iteration] = field(default_factory=dict)  # those not over
    _trained: set[int] = field(default_factory=set)
    _made: set[int] = field(default_factory=set)  # optimisers, since the last update
    _acting: Acting = field(default_factory=Acting)
    _round: Round | None = None
    # The events of the step so far, and the phase that was open after each.
    _passed: list[e.Event] = field(default_factory=list)
    _phases_passed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._finished = Finished(self.sink, self.origin_ns, self.exposed)
        self._course = Course(self._finished)

    def take(self, notes: list[Any]) -> None:
        """Go on with what was noted after all that came earlier: five fields for each event."""
        course = self._course
        phases, passed, phases_passed = self._phases, self._passed, self._phases_passed
        columns = [notes[field :: len(e.FIELDS)] for field in range(len(e.FIELDS))]
        kinds, times_ns, subjects, details, marks = columns
        position = 0
        while position < len(kinds):
            kind = kinds[position]
            if course.late is not None and kind not in _MAY_BE_LATE:
                course.end_late()
            if kind == e.FETCH:
                taken = self._take_rounds(columns, position)
                if taken:
                    position += taken
                    continue
            time_ns, subject = times_ns[position], subjects[position]
            detail, mark = details[position], marks[position]
            position += 1
            # Give the time since the last event to the phase that was open.
            current = course.tail or course.step
            if current is not None:
                current.spent[phases.now] += time_ns - course.now_ns
            course.now_ns = time_ns
            if mark is not None:
                self._lap_on_device(current, mark)
            # Half of all events are pairs that are nothing but a phase.
            if kind in _ENTER:
                phases.enter(kind)
            elif kind in _LEAVE:
                phases.leave()
            else:
                _HANDLERS[kind](self, kind, time_ns, subject, detail)
            if len(passed) <= LONGEST_STEP:  # without a loader nothing ends it
                passed.append((kind, time_ns, subject, detail, mark))
                phases_passed.append(phases.now)
        self._finished.write()

    def _take_rounds(self, columns: Sequence[list[Any]], begin: int) -> int:
        """Take steps that go like one before; return how many events they had, or 0."""
        step = self._course.step
        is_inside = self._course.tail is None and step is not None and step.batches
        if is_inside and len(self._passed) <= LONGEST_STEP:  # of a step of several batches
            return 0
        if self._passed:
            self._round = plain_round(self._passed, self._phases_passed) or self._round
            self._passed.clear()
            self._phases_passed.clear()
        known, course = self._round, self._course
        found = known and known.find(columns, begin, self._calls)
        if not known or not found:
            return 0
        begin_ns, phase = found.begins_ns[0], self._phases.now
        step = course.begin_plain_step(begin_ns, known.key, phase, known.batches)
        if step is None:
            return 0
        self._take_round(step, known, found, 0)
        last = len(found) - 1
        if last:
            step = course.pass_rounds(found, known.key, known.batches)
            self._take_round(step, known, found, last)
        self.updates += len(found) * len(known.optimizers)
        self._made.clear()
        self._phases.begin_anew()
        self._at_fetch = None
        course.waiting.loose.clear()
        return len(found) * known.events

    def _take_round(self, step: Step, known: Round, found: RepeatedSteps, number: int) -> None:
        """Let a step that has just begun be one of the rounds, up to its last event."""
        tail_ns = [each_ns[number] for each_ns in found.tails_ns]
        tail = [
            (phase, end_ns - begin_ns)
            for phase, (begin_ns, end_ns) in zip(found.tail_phases, pairwise(tail_ns), strict=False)
        ]
        for phase, spent_ns in enumerate(found.spent):
            step.spent[phase] += spent_ns[number]
        for phase, took_ns in (*tail, (OTHER, found.begins_ns[number + 1] - tail_ns[-1])):
            step.spent[phase] -= took_ns
        course = self._course
        if known.has_detail or number < len(found) - 1:
            step.batches = known.batches
            for batches in found.batches:
                step.take_batch(batches[number])
        else:  # nobody has seen a backward pass that took it
            course.keep_batch(known.key, found.batches[0][number])
        step.backwards = found.backwards
        for module, each in found.learned:
            if module is not None:
                _, training, samples = each[number]
                self._calls.take(module, training, samples)
                continue
            if each[number] is not None:
                step.losses.append(each[number])
            self._take_called_samples(step)
        step.optimizers |= known.optimizers
        if course.epoch is not None:
            course.epoch.asked_ns = found.asked_ns[number]
        course.now_ns = tail_ns[0]
        course.second.read(course.now_ns, found.updated_other_ns[number])
        spent_after = course.begin_tail().spent
        for phase, took_ns in tail:
            spent_after[phase] += took_ns
        course.now_ns = tail_ns[-1]

    @property
    def steps(self) -> int:
        """Count the steps that are given away."""
        return self._course.steps

    @property
    def steps_seen(self) -> int:
        """Count the steps that are complete, the last one included.

        Without a loader a step is known to be complete only when the next one updates; until then
        it counts if it had as many optimisers as the one before.
        """
        course = self._course
        complete = course.steps + (course.held is not None)
        if course.tail is None or course.step is None or course.epoch is None or course.epoch.keys:
            return complete
        before = course.held[0].optimizers if course.held else course.step.optimizers
        return complete + (len(course.step.optimizers) >= len(before))

    def finish(self) -> None:
        """End everything: there will be no more events. Waits for the device."""
        self._course.close_epoch()
        self._finished.wait()

    # time and phases

    def _lap_on_device(self, current: Step | None, mark: DeviceMark) -> None:
        if current is not None and self._mark is not None:
            if current.device_begin is None:
                current.device_begin = self._mark
            current.device_laps.append((self._phases.now, mark))
        self._mark = mark

    def _on_clocks(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._course.second.read(time_ns, detail)

    def _on_detail(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._course.detail = subject

    def _on_made(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._made.add(subject)
        self._made_ns = time_ns

    # loaders

    def _on_iterate(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        course = self._course
        other_ns, loader = detail
        course.second.read(time_ns, other_ns)
        if self._phases.updating:  # a closure that goes through all of the data
            self._phases.enter(kind)
            return
        course.end_evaluations()
        if course.epoch is not None and course.is_over(course.epoch, subject, loader):
            course.close_epoch()
        earlier = course.find_aside(subject)
        if earlier is not None:  # it was looked into, and begins anew
            course.asides.remove(earlier)
        course.begin_aside(subject)
        self._phases.enter(kind)

    def _on_iterated(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.leave_to_base()
        self._iterations[subject] = e.Iteration(*detail)
        aside = self._course.find_aside(subject)
        if aside is not None:
            aside.started = self._course.moment()
            aside.length, aside.loader = detail

    def _on_fetch(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._fetch_ns = time_ns
        self._phases.forget_call()
        course = self._course
        known = self._iterations.get(subject, e.Iteration(None, None))
        course.rejoin(subject, known.loader)
        if course.epoch is not None and subject in course.epoch.keys:
            course.end_evaluations()
            self._phases.begin_anew()
            course.end_step_at(time_ns)
        elif not self._phases.updating and course.find_aside(subject) is None:
            # Made long ago, or thought to be over: some loaders go on after their last batch.
            course.begin_aside(subject, known)
        aside = course.find_aside(subject)
        if aside is None or not aside.batches:
            course.waiting.ask_another()
        if aside is not None:
            course.use_aside(aside)
        elif course.epoch is not None and course.epoch.first_key == subject:
            course.epoch.asked_ns = time_ns
        step = course.tail or course.step
        self._at_fetch = None if step is None else (step, step.moment(time_ns, 0))
        self._phases.enter(kind)

    def _on_fetched(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.leave_to_base()
        course = self._course
        batch: Batch = detail
        epoch = course.epoch
        if epoch is not None and epoch.first_key == subject and epoch.batches_left:
            epoch.batches_left -= 1
        aside = course.find_aside(subject)
        if aside is not None:
            aside.take_batch(batch)
        else:
            course.keep_batch(subject, batch)

    def _on_over(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        """A loader is exhausted, or its iterator was let go of."""
        if kind == e.EXHAUSTED:
            self._phases.leave_to_base()
        else:
            self._fetch_ns = time_ns
        self._iterations.pop(subject, None)
        course = self._course
        course.second.read(time_ns, detail)
        epoch = course.epoch
        aside = course.find_aside(subject)
        if epoch is not None:
            epoch.around.discard(subject)  # it has no other batch
        if aside is not None:
            course.end_evaluations(since=aside)
            self._end_aside(aside, kind, course.moment(), time_ns - self._fetch_ns)
        elif epoch is None or epoch.ended is not None:
            pass
        elif epoch.first_key == subject or course.end_inner(epoch, subject):
            course.end_evaluations()  # those that were broken off: they are in the epoch still
            course.end_step_at(time_ns)  # a fetch has ended it already, unless there was none
            epoch.ended = epoch.remnant = course.moment()
            if kind == e.EXHAUSTED and self._at_fetch and self._at_fetch[0] is course.step:
                epoch.remnant = self._at_fetch[1]  # the last fetch found nothing
        else:
            epoch.keys.discard(subject)

    def _end_aside(self, aside: Aside, kind: int, end: Moment, stop_ns: int) -> None:
        """Nothing was trained with what an iteration gave, while it went on."""
        course = self._course
        is_whole = kind == e.EXHAUSTED and aside.is_whole
        if is_whole and aside.has_one_left:
            course.end_later(aside, end, stop_ns)
            return
        if aside.last_call is not None and not is_whole:
            aside.leave_unused()
        elif aside.last_call is None and len(aside.fetched) == 1:
            course.let_loose(aside)
        course.end_aside(aside, end, stop_ns)

    # calls, backward passes, updates

    def _on_call(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        call = e.Call(*detail)
        course = self._course
        if course.late is not None:
            if not call.grad and subject in course.late[0].modules:
                self._phases.enter(kind)
                return
            course.end_late()
        innermost = course.innermost()
        self._call_is_aside = True
        if innermost is not None and innermost.key is not None:
            innermost.called_with_grad |= call.grad
            innermost.take_call(subject, call.samples)
        elif call.grad:
            if innermost is not None:
                innermost.is_of_trained |= subject in innermost.modules
            course.end_evaluations()
            self._forget_trial(is_late=time_ns - self._called_ns > _TRIAL_BEFORE_NS)
            course.begin_without_loader(anew=bool(self._made))
        elif self._is_evaluation(subject, call, innermost):
            if innermost is None:
                innermost = course.begin_calls()
            innermost.is_of_trained |= subject in self._trained
            samples = call.samples
            if samples is None and course.waiting.loose:
                samples = course.waiting.loose[-1][0]
            innermost.take_test(subject, samples, self._calls.usual)
            course.waiting.loose.clear()
        else:  # a teacher's, of the step that follows an evaluation
            self._call_is_aside = False
            if not call.training and subject in self._trained:
                course.waiting.loose.clear()
        if call.grad:
            has_loader = course.epoch is not None and course.epoch.first_key is not None
            if not has_loader and subject == self._calls.usual != self._phases.unsure_of:
                self._phases.forget_call()  # the forward pass begins only now
            self._module = subject
            self._trained.add(subject)
            self._calls.take(subject, call.training, call.samples)
        self._phases.enter(kind)

    def _forget_trial(self, *, is_late: bool = False) -> None:
        """Begin anew if all so far was a call long ago, or before there was an optimiser."""
        was_before = is_late or self._made_ns > self._called_ns
        if was_before and not self._phases.updating and self._course.forget_trial():
            self._calls.clear()

    def _is_evaluation(self, module: int, call: e.Call, before: Aside | None) -> bool:
        """Tell a test in between from a teacher's call: it comes after an update, in eval mode."""
        course = self._course
        epoch, tail = course.epoch, course.tail
        if epoch is None:  # the module may be trained later
            is_test = not call.training
        else:
            if epoch.ended is not None:
                waiting = before is not None or course.has_trained_all()
            else:
                waiting = tail is not None and tail.batches == 0 and not tail.losses
            is_test = waiting and not call.training and module in self._trained
        is_one_of_many = call.samples == 1 and self._samples_trained != 1
        return is_test and not (is_one_of_many and self._acting.is_usual(self.updates))

    def _on_called(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._called_ns = time_ns
        self._phases.leave()
        course = self._course
        if course.late is not None:
            aside, _, stop_ns = course.late
            course.late = (aside, course.moment(), stop_ns)
            return
        innermost = course.innermost()
        current = course.tail or course.step
        if subject and current is not None:
            # After a backward pass it may be a metric. In an iteration of which nothing is known
            # yet it would be the first.
            is_in_loader = innermost is not None and innermost.key is not None
            is_sure = is_in_loader or (course.tail is None and not current.backwards)
            self._phases.go_forward(self._module, current, is_sure=is_sure)
        if innermost is not None and self._call_is_aside:
            innermost.last_call = course.moment()

    def _on_backward(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._backward_ns = time_ns
        course = self._course
        self._phases.be_sure(course.tail or course.step)
        course.promote_asides()
        course.begin_without_loader(anew=bool(self._made))
        course.train_with_batches(self._calls.together())
        self._phases.enter(kind)

    def _on_backward_done(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.leave_to_base()
        course = self._course
        current = course.tail or course.step
        if course.tail is not None and course.tail.begin_ns > self._backward_ns:
            course.move_tail_here()  # it updated what it had the gradients of
            current = course.step
        if current is not None:
            if detail is not None:
                current.losses.append(detail)
            self._take_called_samples(current)
        self._calls.clear()

    def _take_called_samples(self, current: Step) -> None:
        samples = self._calls.end()
        # A closure is called several times, with the same samples.
        again = self._phases.updating and current.called_samples
        if samples is not None and not again:
            current.called_samples.append(samples)
            self._samples_trained = samples

    def _on_step(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        course = self._course
        course.promote_asides()
        self._forget_trial()
        course.begin_without_loader(anew=bool(self._made))
        if not self._phases.updating and course.step is not None:
            if course.tail is not None:
                # One that was made after the last update takes over: it is no second one beside it.
                if subject in course.step.optimizers or subject in self._made:
                    course.end_step_at(course.tail.begin_ns)
                else:
                    course.join_tail(cut=True)
            course.step.optimizers.add(subject)
            if not course.step.backwards:  # nobody has seen what it was trained with
                course.waiting.take_loose(course.step)
        course.waiting.loose.clear()
        self._phases.begin_update()

    def _on_stepped(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.end_update()
        self._made.clear()
        course = self._course
        course.second.read(time_ns, detail)
        if not self._phases.updating and course.step is not None and course.epoch is not None:
            course.begin_tail()
            self.updates += 1


_HANDLERS = {
    e.ITERATE: Recognizer._on_iterate,
    e.ITERATED: Recognizer._on_iterated,
    e.FETCH: Recognizer._on_fetch,
    e.FETCHED: Recognizer._on_fetched,
    e.EXHAUSTED: Recognizer._on_over,
    e.DROPPED: Recognizer._on_over,
    e.CALL: Recognizer._on_call,
    e.CALLED: Recognizer._on_called,
    e.BACKWARD: Recognizer._on_backward,
    e.BACKWARD_DONE: Recognizer._on_backward_done,
    e.STEP: Recognizer._on_step,
    e.STEPPED: Recognizer._on_stepped,
    e.DETAIL: Recognizer._on_detail,
    e.MADE: Recognizer._on_made,
    e.CLOCKS: Recognizer._on_clocks,
}

"""Detection of training steps in recorded events.

`StepDetector` takes events in their order and passes rows of steps, epochs and evaluations to a
sink. With a loader, a step lasts from the fetch of its first batch to the first fetch after its
update. Without one, it lasts from the end of one update to the end of the next. Updates by several
optimisers, as in a GAN, are one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.trace import event_buffer as e
from stepscope.trace.detect.epochs import EpochTracker
from stepscope.trace.detect.fast_path import LONGEST_STEP, FastPath
from stepscope.trace.detect.pending_batches import ModelCalls
from stepscope.trace.detect.row_builder import CommunicationTime, RowBuilder, Sink
from stepscope.trace.detect.spans import Batch, Moment, Phases, Step

if TYPE_CHECKING:
    from stepscope.meter.device_timeline import DeviceMark


_ENTER = frozenset({e.MOVE, e.ZERO, e.OWN})
_LEAVE = frozenset({e.MOVED, e.ZEROED, e.OWN_DONE})
# A call so long before the next one, with no backward pass in between, only tried the model.
_TRIAL_BEFORE_NS = 100_000_000
# Events that may come between the end of an evaluation's loader and the end of its last batch.
_MAY_BE_LATE = frozenset({e.MOVE, e.MOVED, e.CALL, e.CALLED, e.OWN, e.OWN_DONE})


@dataclass(slots=True)
class StepDetector:
    """Take events in the order in which they happened and pass rows to the sink."""

    sink: Sink
    origin_ns: int
    communication: CommunicationTime = field(default_factory=CommunicationTime)

    tracker: EpochTracker = field(init=False)
    _fast_path: FastPath = field(init=False)
    _phases: Phases = field(default_factory=Phases)
    _mark: DeviceMark | None = None
    _calls: ModelCalls = field(default_factory=ModelCalls)
    _module: int | None = None  # the module called last
    _called_ns: int = 0
    _made_ns: int = 0
    _call_is_candidate: bool = False
    _backward_ns: int = 0
    _fetch_ns: int = 0
    _at_fetch: tuple[Step, Moment] | None = None
    _iterations: dict[int, e.Iteration] = field(default_factory=dict)  # still open
    _made: set[int] = field(default_factory=set)  # optimisers made since the last update

    def __post_init__(self) -> None:
        self.tracker = EpochTracker(RowBuilder(self.sink, self.origin_ns, self.communication))
        self._fast_path = FastPath(self.tracker, self._phases, self._calls)

    def take(self, fields: list[Any]) -> None:
        """Process the next events, given as a flat list of five fields each."""
        tracker, phases = self.tracker, self._phases
        passed, phases_after = self._fast_path.events, self._fast_path.phases_after
        columns = [fields[field :: len(e.FIELDS)] for field in range(len(e.FIELDS))]
        kinds, times_ns, subjects, details, marks = columns
        position = 0
        while position < len(kinds):
            kind = kinds[position]
            if tracker.late is not None and kind not in _MAY_BE_LATE:
                tracker.end_late()
            if kind == e.FETCH:
                taken = self._take_repeats(columns, position)
                if taken:
                    position += taken
                    continue
            time_ns, subject = times_ns[position], subjects[position]
            detail, mark = details[position], marks[position]
            position += 1
            # Assign the time since the last event to the open phase.
            current = tracker.tail or tracker.step
            if current is not None:
                current.spent[phases.now] += time_ns - tracker.now_ns
            tracker.now_ns = time_ns
            if mark is not None:
                self._lap_on_device(current, mark)
            elif self._mark is not None and current is not None:
                current.has_gap = True
            # Half of all events only open or close a phase.
            if kind in _ENTER:
                phases.enter(kind)
            elif kind in _LEAVE:
                phases.leave()
            else:
                _HANDLERS[kind](self, kind, time_ns, subject, detail)
            if len(passed) <= LONGEST_STEP:  # without a loader the list is never cleared
                passed.append((kind, time_ns, subject, detail, mark))
                phases_after.append(phases.now)
        tracker.rows.write()

    def _take_repeats(self, columns: Sequence[list[Any]], begin: int) -> int:
        """Process repeated steps at once; return the number of their events, or 0."""
        taken = self._fast_path.take(columns, begin)
        if taken:
            self._made.clear()
            self._at_fetch = None
        return taken

    @property
    def steps_seen(self) -> int:
        """Return the number of complete steps, the last one included.

        Without a loader a step is known to be complete only when the next one updates. Until then
        it counts if it had as many optimisers as the previous one.
        """
        tracker = self.tracker
        complete = tracker.steps + (tracker.completed is not None)
        if not tracker.tail or not tracker.step or not tracker.epoch or tracker.epoch.keys:
            return complete
        before = tracker.completed[0].optimizers if tracker.completed else tracker.step.optimizers
        return complete + (len(tracker.step.optimizers) >= len(before))

    def finish(self) -> None:
        """End the epoch and write all rows. Waits for the device."""
        self.tracker.close_epoch()
        self.tracker.rows.wait()

    # time and phases

    def _lap_on_device(self, current: Step | None, mark: DeviceMark) -> None:
        if current is not None and self._mark is not None:
            if current.device_begin is None:
                current.device_begin = self._mark
            current.device_laps.append((self._phases.now, mark))
        self._mark = mark

    def _on_clocks(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self.tracker.second_clock_ahead_ns = detail - time_ns

    def _on_detail(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self.tracker.detail = subject

    def _on_made(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._made.add(subject)
        self._made_ns = time_ns

    # loaders

    def _on_iterate(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        tracker = self.tracker
        other_ns, loader = detail
        tracker.second_clock_ahead_ns = other_ns - time_ns
        if self._phases.updating:  # a closure that iterates over the data
            self._phases.enter(kind)
            return
        tracker.end_evaluations()
        if tracker.epoch is not None and tracker.is_over(tracker.epoch, subject, loader):
            tracker.close_epoch()
        earlier = tracker.find_candidate(subject)
        if earlier is not None:  # it was inspected, and starts again
            tracker.candidates.remove(earlier)
        tracker.begin_candidate(subject)
        self._phases.enter(kind)

    def _on_iterated(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.leave_to_base()
        self._iterations[subject] = e.Iteration(*detail)
        candidate = self.tracker.find_candidate(subject)
        if candidate is not None:
            candidate.started = self.tracker.moment()
            candidate.length, candidate.loader = detail

    def _on_fetch(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._fetch_ns = time_ns
        self._phases.forget_call()
        tracker = self.tracker
        known = self._iterations.get(subject, e.Iteration(None, None))
        tracker.rejoin(subject, known.loader)
        if tracker.epoch is not None and subject in tracker.epoch.keys:
            tracker.end_evaluations()
            self._phases.reset()
            tracker.end_step_at(time_ns)
        elif not self._phases.updating and tracker.find_candidate(subject) is None:
            # Created long ago, or taken to be over: some loaders continue after their last batch.
            tracker.begin_candidate(subject, known)
        candidate = tracker.find_candidate(subject)
        if candidate is None or not candidate.batches:
            tracker.pending.begin_another()
        if candidate is not None:
            tracker.use_candidate(candidate)
        elif tracker.epoch is not None and tracker.epoch.first_key == subject:
            tracker.epoch.asked_ns = time_ns
        step = tracker.tail or tracker.step
        self._at_fetch = None if step is None else (step, step.moment(time_ns, 0))
        self._phases.enter(kind)

    def _on_fetched(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.leave_to_base()
        tracker = self.tracker
        batch: Batch = detail
        epoch = tracker.epoch
        if epoch is not None and epoch.first_key == subject and epoch.batches_left:
            epoch.batches_left -= 1
        candidate = tracker.find_candidate(subject)
        if candidate is not None:
            candidate.take_batch(batch)
        else:
            tracker.keep_batch(subject, batch)

    def _on_over(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        """Handle the end of a loader: exhausted, or its iterator was dropped."""
        if kind == e.EXHAUSTED:
            self._phases.leave_to_base()
        else:
            self._fetch_ns = time_ns
        self._iterations.pop(subject, None)
        tracker = self.tracker
        tracker.second_clock_ahead_ns = detail - time_ns
        epoch = tracker.epoch
        candidate = tracker.find_candidate(subject)
        if epoch is not None:
            epoch.outer_keys.discard(subject)  # it has no further batch
        if candidate is not None:
            is_exhausted = kind == e.EXHAUSTED
            tracker.end_loader(candidate, time_ns - self._fetch_ns, is_exhausted=is_exhausted)
        elif epoch is None or epoch.ended is not None:
            pass
        elif epoch.first_key == subject or tracker.end_inner(epoch, subject):
            tracker.end_evaluations()  # interrupted ones: they still belong to the epoch
            tracker.end_step_at(time_ns)  # unless a fetch has ended it already
            epoch.ended = epoch.remnant = tracker.moment()
            if kind == e.EXHAUSTED and self._at_fetch and self._at_fetch[0] is tracker.step:
                epoch.remnant = self._at_fetch[1]  # the last fetch returned no batch
        else:
            epoch.keys.discard(subject)

    # calls, backward passes, updates

    def _on_call(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        call = e.Call(*detail)
        tracker = self.tracker
        if tracker.late is not None:
            if not call.grad and subject in tracker.late.modules:
                self._phases.enter(kind)
                return
            tracker.end_late()
        innermost = tracker.innermost()
        self._call_is_candidate = True
        if innermost is not None and innermost.key is not None:
            innermost.called_with_grad |= call.grad
            innermost.take_call(subject, call.samples)
        elif call.grad:
            if innermost is not None:
                innermost.is_of_trained |= subject in innermost.modules
            tracker.end_evaluations()
            self._forget_trial(is_late=time_ns - self._called_ns > _TRIAL_BEFORE_NS)
            tracker.begin_without_loader(has_new_optimizer=bool(self._made))
        elif tracker.is_evaluation(subject, call, self._calls.samples_trained):
            if innermost is None:
                innermost = tracker.begin_calls()
            innermost.is_of_trained |= subject in tracker.trained
            samples = call.samples
            if samples is None and tracker.pending.single_use:
                samples = tracker.pending.single_use[-1][0]
            innermost.take_call_without_loader(subject, samples, self._calls.usual)
            tracker.pending.single_use.clear()
        else:  # a teacher's call in the next step
            self._call_is_candidate = False
            if not call.training and subject in tracker.trained:
                tracker.pending.single_use.clear()
        if call.grad:
            has_loader = tracker.epoch is not None and tracker.epoch.first_key is not None
            if not has_loader and subject == self._calls.usual != self._phases.unsure_module:
                self._phases.forget_call()  # the forward pass begins here
            self._module = subject
            tracker.trained.add(subject)
            self._calls.take(subject, call.training, call.samples)
        self._phases.enter(kind)

    def _forget_trial(self, *, is_late: bool = False) -> None:
        """Reset if there was only a call long ago, or before any optimiser was made."""
        was_before = is_late or self._made_ns > self._called_ns
        if was_before and not self._phases.updating and self.tracker.forget_trial():
            self._calls.clear()

    def _on_called(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._called_ns = time_ns
        self._phases.leave()
        tracker = self.tracker
        if tracker.late is not None:
            tracker.late.end = tracker.moment()
            return
        innermost = tracker.innermost()
        current = tracker.tail or tracker.step
        if subject and current is not None:
            # After a backward pass it may be a metric. In a new iteration it would be the first
            # call.
            is_in_loader = innermost is not None and innermost.key is not None
            is_sure = is_in_loader or (tracker.tail is None and not current.backwards)
            self._phases.begin_forward(self._module, current, is_sure=is_sure)
        if innermost is not None and self._call_is_candidate:
            innermost.last_call = tracker.moment()

    def _on_backward(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._backward_ns = time_ns
        tracker = self.tracker
        self._phases.confirm_forward(tracker.tail or tracker.step)
        tracker.promote_candidates()
        tracker.begin_without_loader(has_new_optimizer=bool(self._made))
        tracker.train_with_batches(self._calls.together())
        self._phases.enter(kind)

    def _on_backward_done(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.leave_to_base()
        tracker = self.tracker
        current = tracker.tail or tracker.step
        if tracker.tail is not None and tracker.tail.begin_ns > self._backward_ns:
            # Weights were updated during the backward pass: the step lasts until its end.
            tracker.join_tail()
            tracker.begin_tail()
            current = tracker.step
        if current is not None:
            if detail is not None:
                current.losses.append(detail)
            self._calls.end_for(current, in_update=self._phases.updating > 0)
        self._calls.clear()

    def _on_step(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        tracker = self.tracker
        tracker.promote_candidates()
        self._forget_trial()
        tracker.begin_without_loader(has_new_optimizer=bool(self._made))
        if not self._phases.updating and tracker.step is not None:
            if tracker.tail is not None:
                # An optimiser made after the last update replaces the earlier one: the steps are
                # separate.
                if subject in tracker.step.optimizers or subject in self._made:
                    tracker.end_step_at(tracker.tail.begin_ns)
                else:
                    tracker.join_tail(cut=True)
            tracker.step.optimizers.add(subject)
            if not tracker.step.backwards:  # no backward pass was recorded
                tracker.pending.take_single_use(tracker.step)
        tracker.pending.single_use.clear()
        self._phases.begin_update()

    def _on_stepped(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._phases.end_update()
        self._made.clear()
        tracker = self.tracker
        tracker.second_clock_ahead_ns = detail - time_ns
        if not self._phases.updating and tracker.step is not None and tracker.epoch is not None:
            tracker.begin_tail()
            tracker.updates += 1


_HANDLERS = {
    e.ITERATE: StepDetector._on_iterate,
    e.ITERATED: StepDetector._on_iterated,
    e.FETCH: StepDetector._on_fetch,
    e.FETCHED: StepDetector._on_fetched,
    e.EXHAUSTED: StepDetector._on_over,
    e.DROPPED: StepDetector._on_over,
    e.CALL: StepDetector._on_call,
    e.CALLED: StepDetector._on_called,
    e.BACKWARD: StepDetector._on_backward,
    e.BACKWARD_DONE: StepDetector._on_backward_done,
    e.STEP: StepDetector._on_step,
    e.STEPPED: StepDetector._on_stepped,
    e.DETAIL: StepDetector._on_detail,
    e.MADE: StepDetector._on_made,
    e.CLOCKS: StepDetector._on_clocks,
}

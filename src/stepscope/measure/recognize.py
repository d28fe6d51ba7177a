"""What a step is, found out from what hooks saw: events in, rows of steps and epochs out.

It knows nothing of torch's objects and reads no clock, so that any loop can be played to it.

A **step** is one update. It lasts from a fetch of the training loader to the next fetch after the
update, so several batches (accumulation), several backward passes and several optimisers (a GAN)
are one step. Where nothing is fetched between two updates of the same optimiser, a step lasts from
the end of one update to the end of the next.

An **epoch** is one iteration of a loader in which an update happened, or, without a loader, all of
the training. An **evaluation** is an iteration without any backward pass in which a module was
called, or, without a loader, calls of a trained module in evaluation mode without gradients before
the step has begun its work. Its time is taken out of the step and of the epoch that it lies in.

**Phases** follow from what is open: a fetch, a move, a call, a backward pass, an optimiser's step.
After a module's call with gradients, `forward` goes on until `backward()`, because the loss belongs
to it. What nothing claims is `other`, or `optimizer` inside of a closure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from stepscope.measure import events as e
from stepscope.measure.clock import seconds
from stepscope.measure.device import Mark
from stepscope.measure.loading import LoadTiming
from stepscope.measure.steps import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    TRANSFER,
    EpochTiming,
    StepRow,
    device_columns,
)
from stepscope.records import schema

Loss = Callable[[], Sequence[float] | float]

_PHASE_OF = {
    e.FETCH: DATA,
    e.CALL: FORWARD,
    e.BACKWARD: BACKWARD,
    e.STEP: OPTIMIZER,
}
_ENTER = {e.MOVE: TRANSFER, e.ZERO: OPTIMIZER, e.OWN: OTHER}
_LEAVE = frozenset({e.MOVED, e.ZEROED, e.OWN_DONE})
# Time on the device that belongs to no phase of the step: an evaluation.
_TAKEN_OUT = -1


class Sink(Protocol):
    """Who is given the rows."""

    def step(self, row: StepRow) -> None:
        """Take a finished step."""

    def epoch(self, split: str, timing: EpochTiming, loss: float | None) -> None:
        """Take a finished epoch (`train`) or evaluation (`test`)."""


@dataclass(slots=True)
class _Step:
    """A step, or what came after its last update so far."""

    begin_ns: int
    detail: str
    spent: list[int] = field(default_factory=lambda: [0] * 6)
    # What was taken out of it, an evaluation, on both clocks.
    out_ns: int = 0
    out_other_ns: int = 0
    batches: int = 0
    samples: int | None = None
    # Samples of the first call before each backward pass, for loops without a loader.
    called_samples: list[int] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    loads: list[LoadTiming] = field(default_factory=list)
    backwards: int = 0
    optimizers: set[int] = field(default_factory=set)
    device_begin: Mark | None = None
    device_laps: list[tuple[int, Mark]] = field(default_factory=list)

    def add(self, later: _Step) -> None:
        """Take over everything that came after."""
        self.spent = [mine + more for mine, more in zip(self.spent, later.spent, strict=True)]
        self.out_ns += later.out_ns
        self.out_other_ns += later.out_other_ns
        self.batches += later.batches
        self.samples = _sum(self.samples, later.samples)
        self.called_samples += later.called_samples
        self.losses += later.losses
        self.loads += later.loads
        self.backwards += later.backwards
        self.optimizers |= later.optimizers
        self.device_laps += later.device_laps


class _Batch(NamedTuple):
    samples: int | None
    load: LoadTiming | None


@dataclass(slots=True)
class _Moment:
    """A point in time on both clocks, and what the step had spent until then."""

    time_ns: int
    other_ns: int
    spent: list[int]
    out_ns: int
    out_other_ns: int
    device_laps: int


@dataclass(slots=True)
class _Aside:
    """An iteration, or calls without a loader, of which it is not known yet what they are for."""

    key: int | None
    begin: _Moment
    started: _Moment
    last_call: _Moment | None = None
    called_with_grad: bool = False
    length: int | None = None
    # Which loader is iterated over, when that began, and when it was last asked for a batch.
    loader: int | None = None
    made_ns: int = 0
    asked_ns: int = 0
    batches: int = 0
    samples: int | None = None
    fetched: list[_Batch] = field(default_factory=list)

    @property
    def used(self) -> bool:
        """Whether it is more than an iterator that was made."""
        return self.key is None or self.batches > 0

    @property
    def is_evaluation(self) -> bool:
        """Whether modules were called in it, and never with gradients."""
        return self.last_call is not None and not self.called_with_grad


@dataclass(slots=True)
class _Epoch:
    timing: EpochTiming
    begin_other_ns: int
    # The loaders that it trains with; it ends with the first. None without a loader.
    first_key: int | None = None
    keys: set[int] = field(default_factory=set)
    # How many batches the first loader has still to give, where that is known.
    batches_left: int | None = None
    loader: int | None = None
    asked_ns: int = 0
    out_other_ns: int = 0
    steps: int = 0
    ended: _Moment | None = None
    remnant: _Moment | None = None
    loss_sum: float = 0.0
    loss_samples: int = 0


@dataclass(slots=True)
class Recognizer:
    """Take events in the order in which they happened; give rows to the sink."""

    sink: Sink
    origin_ns: int
    updates: int = 0
    steps: int = 0
    epochs: int = 0

    _phase: int = OTHER
    _open: list[int] = field(default_factory=list)
    _mark_ns: int = 0
    _mark: Mark | None = None
    _detail: str = schema.FULL
    _step: _Step | None = None
    _tail: _Step | None = None
    _held: tuple[_Step, int] | None = None
    _fetched: defaultdict[int, deque[_Batch]] = field(default_factory=lambda: defaultdict(deque))
    _ahead: int = 0
    _epoch: _Epoch | None = None
    _asides: list[_Aside] = field(default_factory=list)
    _updating: int = 0
    _call_samples: int | None = None
    _fetch_ns: int = 0
    _at_fetch: tuple[_Step, _Moment] | None = None
    _update_ns: int = 0
    _update_other_ns: int = 0
    _trained: set[int] = field(default_factory=set)
    _unfinished: deque[tuple[StepRow, _Step, _Epoch]] = field(default_factory=deque)

    def take(self, events: Iterable[e.Event]) -> None:
        """Go on with events that came after all earlier ones."""
        for kind, time_ns, subject, detail, mark in events:
            # Give the time since the last event to the phase that was open.
            current = self._tail or self._step
            if current is not None:
                current.spent[self._phase] += time_ns - self._mark_ns
            self._mark_ns = time_ns
            if mark is not None:
                self._lap_on_device(current, mark)
            # Half of all events are pairs that are nothing but a phase: they make no call.
            if kind in _ENTER:
                self._open.append(self._phase)
                self._phase = _ENTER[kind]
            elif kind in _LEAVE:
                self._leave()
            else:
                _HANDLERS[kind](self, kind, time_ns, subject, detail)
        self._write_finished()

    @property
    def steps_seen(self) -> int:
        """Count the steps that are complete, the last one included.

        Without a loader a step is known to be complete only when the next one updates; until then
        it counts if it had as many optimisers as the one before.
        """
        complete = self.steps + (self._held is not None)
        if self._tail is None or self._step is None or self._epoch is None or self._epoch.keys:
            return complete
        before = self._held[0].optimizers if self._held else self._step.optimizers
        return complete + (len(self._step.optimizers) >= len(before))

    def finish(self) -> None:
        """End everything: there will be no more events. Waits for the device."""
        self._close_epoch()
        if self._unfinished and self._unfinished[-1][1].device_laps:
            self._unfinished[-1][1].device_laps[-1][1].wait()
        self._write_finished()

    # time and phases

    def _lap_on_device(self, current: _Step | None, mark: Mark) -> None:
        if current is not None and self._mark is not None:
            if current.device_begin is None:
                current.device_begin = self._mark
            current.device_laps.append((self._phase, mark))
        self._mark = mark

    def _base(self) -> int:
        return OPTIMIZER if self._updating else OTHER

    def _enter(self, kind: int) -> None:
        self._open.append(self._phase)
        self._phase = _PHASE_OF[kind]

    def _leave(self) -> None:
        self._phase = self._open.pop() if self._open else self._base()

    def _leave_to_base(self) -> None:
        self._leave()
        self._phase = self._base()

    def _on_detail(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._detail = subject

    # loaders

    def _on_iterate(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        if self._updating:  # a closure that goes through all of the data
            self._enter(e.FETCH)
            return
        self._end_evaluations()
        if self._epoch is not None and self._is_over(self._epoch, subject):
            self._close_epoch()
        earlier = self._find_aside(subject)
        if earlier is not None:  # it was looked into, and begins anew
            self._asides.remove(earlier)
        self._begin_aside(subject, detail)
        self._enter(e.FETCH)

    def _begin_aside(self, key: int, other_ns: int) -> None:
        if self._step is None:
            self._step = _Step(self._mark_ns, self._detail)
            self._begin_asides_here()
        now = self._moment(other_ns)
        self._asides.append(_Aside(key, now, now, made_ns=self._mark_ns))

    def _moment(self, other_ns: int) -> _Moment:
        step = self._tail or self._step
        assert step is not None, "there is nothing to be aside of"
        return _Moment(
            self._mark_ns,
            other_ns,
            list(step.spent),
            step.out_ns,
            step.out_other_ns,
            len(step.device_laps),
        )

    def _is_over(self, epoch: _Epoch, iterated: int) -> bool:
        """Say whether an epoch is behind us when a loader begins to be iterated over.

        Frameworks know how many batches there are and do not ask for one more; a loader with
        persistent workers that a loop broke off is seen again only when it begins anew.
        """
        all_fetched = epoch.batches_left == 0 and self._tail is not None
        return epoch.ended is not None or iterated in epoch.keys or all_fetched

    def _on_iterated(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._leave_to_base()
        aside = self._find_aside(subject)
        if aside is not None:
            aside.started = self._moment(0)
            aside.length, aside.loader = detail

    def _on_fetch(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._fetch_ns = time_ns
        if self._epoch is not None and subject in self._epoch.keys:
            self._end_evaluations()
            self._updating = 0  # an update that raised never said that it ended
            self._open.clear()
            self._phase = OTHER
            self._end_step_at(time_ns)
        elif not self._updating and self._find_aside(subject) is None:
            self._begin_aside(subject, detail)  # one that was made long ago, or thought to be over
        aside = self._find_aside(subject)
        if aside is not None:
            aside.asked_ns = time_ns
        elif self._epoch is not None and self._epoch.first_key == subject:
            self._epoch.asked_ns = time_ns
        step = self._tail or self._step
        self._at_fetch = None if step is None else (step, self._moment(0))
        self._enter(kind)

    def _on_fetched(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._leave_to_base()
        batch = _Batch(*detail)
        epoch = self._epoch
        if epoch is not None and epoch.first_key == subject and epoch.batches_left:
            epoch.batches_left -= 1
        aside = self._find_aside(subject)
        if aside is not None:
            aside.batches += 1
            aside.samples = _sum(aside.samples, batch.samples)
            aside.fetched.append(batch)
        elif self._step is not None:
            (self._tail or self._step).batches += 1
            self._fetched[subject].append(batch)

    def _take_batches(self, step: _Step, *, one: bool = False, leave: int = 0) -> None:
        """Let batches that were fetched belong to a step: of each loader the oldest, or all."""
        for waiting in self._fetched.values():
            taken = 0
            while len(waiting) > leave and not (one and taken):
                batch = waiting.popleft()
                taken += 1
                step.samples = _sum(step.samples, batch.samples)
                if batch.load is not None:
                    step.loads.append(batch.load)

    def _on_over(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        """A loader is exhausted, or its iterator was let go of."""
        if kind == e.EXHAUSTED:
            self._leave_to_base()
        else:
            self._fetch_ns = time_ns
        epoch = self._epoch
        aside = self._find_aside(subject)
        if aside is not None:
            self._asides.remove(aside)
            self._end_aside(aside, self._moment(detail), time_ns - self._fetch_ns)
        elif epoch is not None and epoch.first_key == subject and epoch.ended is None:
            self._end_step_at(time_ns)  # a fetch has ended it already, unless there was none
            epoch.ended = epoch.remnant = self._moment(detail)
            if kind == e.EXHAUSTED and self._at_fetch and self._at_fetch[0] is self._step:
                epoch.remnant = self._at_fetch[1]  # the last fetch found nothing
        elif epoch is not None:
            epoch.keys.discard(subject)

    def _keep_remnant(self, until: _Moment) -> None:
        """Batches that led to no update any more go to the step before: it lasts until there."""
        step = self._step
        if step is None or self._held is None or self._tail is not None:
            return
        held, _ = self._held
        if step.batches:
            step.spent, step.out_ns = list(until.spent), until.out_ns
            step.out_other_ns = until.out_other_ns
            del step.device_laps[until.device_laps :]
            held.add(step)
            self._held = (held, until.time_ns)
        self._take_batches(held)

    def _begin_asides_here(self) -> None:
        """Let what is open begin with the step that begins now: its time is counted in that.

        An iterator that was only made so far, to be used later, begins when it is used.
        """
        self._asides = [aside for aside in self._asides if aside.used]
        for aside in self._asides:
            other_ns = aside.begin.other_ns + self._mark_ns - aside.begin.time_ns
            aside.begin = aside.started = self._moment(other_ns)
            aside.last_call = aside.last_call and aside.begin

    def _innermost(self) -> _Aside | None:
        return next((aside for aside in reversed(self._asides) if aside.used), None)

    def _find_aside(self, key: int) -> _Aside | None:
        return next((aside for aside in self._asides if aside.key == key), None)

    # what is not training

    def _end_aside(self, aside: _Aside, end: _Moment, stop_ns: int = 0) -> None:
        """Nothing was trained in it: an evaluation, if a module was called."""
        step = self._tail or self._step
        if aside.last_call is not None and step is not None:
            if self._epoch is not None and self._epoch.ended is None:
                step.spent = [
                    before + now - after
                    for before, now, after in zip(
                        aside.begin.spent, step.spent, end.spent, strict=True
                    )
                ]
                begin = aside.begin  # what was taken out since then lay inside of it
                step.out_ns = begin.out_ns + end.time_ns - begin.time_ns
                step.out_other_ns = begin.out_other_ns + end.other_ns - begin.other_ns
                for lap in range(begin.device_laps, end.device_laps):
                    step.device_laps[lap] = (_TAKEN_OUT, step.device_laps[lap][1])
            self._tell_of_evaluation(aside, end, stop_ns)
        if self._epoch is None and not self._asides:
            self._step = None

    def _tell_of_evaluation(self, aside: _Aside, end: _Moment, stop_ns: int) -> None:
        timing = EpochTiming(
            self.epochs,
            start_s=seconds(aside.begin.time_ns - self.origin_ns),
            loader_start_s=seconds(aside.started.time_ns - aside.begin.time_ns),
            loader_stop_s=seconds(stop_ns),
            data_s=seconds(end.spent[DATA] - aside.started.spent[DATA] - stop_ns),
            steps_s=seconds(end.time_ns - aside.started.time_ns - stop_ns),
            total_s=seconds(end.other_ns - aside.begin.other_ns),
            samples=aside.samples or 0,
            steps=aside.batches,
        )
        self.sink.epoch("test", timing, None)

    def _end_evaluations(self) -> None:
        """The training goes on: evaluations whose loader was not read to its end are over.

        They end with the last call in them. So do those without a loader.
        """
        for aside in [aside for aside in self._asides if aside.is_evaluation]:
            assert aside.last_call is not None
            self._asides.remove(aside)
            self._end_aside(aside, aside.last_call)

    def _promote_asides(self) -> None:
        """There was a backward pass: what is open, and no evaluation, is training."""
        self._asides = [aside for aside in self._asides if aside.used]
        if not self._asides:
            return
        *earlier, innermost = self._asides
        if any(aside.is_evaluation for aside in earlier) or innermost.key is None:
            self._end_evaluations()
        self._asides = [aside for aside in self._asides if aside.key is not None]
        self._asides = [
            aside
            for aside in self._asides
            if not any(_is_anew(aside, later) for later in self._asides)
        ]
        if not self._asides:
            return
        first, epoch = self._asides[0], self._epoch
        if epoch is None or epoch.first_key is None or _is_anew(epoch, first):
            self._begin_epoch_of(first)
        assert self._epoch is not None
        step = self._tail or self._step
        assert step is not None
        for aside in self._asides:
            assert aside.key is not None
            self._epoch.keys.add(aside.key)
            step.batches += aside.batches
            self._fetched[aside.key] += aside.fetched
        self._asides.clear()

    def _begin_epoch_of(self, aside: _Aside) -> None:
        """Begin an epoch where an iteration began; its first step, where its loader had started."""
        current = self._tail or self._step
        assert current is not None
        first_step = _Step(
            aside.started.time_ns,
            self._detail,
            [now - then for now, then in zip(current.spent, aside.started.spent, strict=True)],
            current.out_ns - aside.started.out_ns,
            current.out_other_ns - aside.started.out_other_ns,
            device_laps=current.device_laps[aside.started.device_laps :],
        )
        if aside.started.device_laps:
            first_step.device_begin = current.device_laps[aside.started.device_laps - 1][1]
        else:
            first_step.device_begin = current.device_begin
        # Updates without a loader may have come before: a warm-up, an earlier part of the training.
        asides, self._asides = self._asides, []
        self._close_epoch()
        self._asides, self._step = asides, first_step
        self._open_epoch(aside.begin.time_ns, aside.begin.other_ns, aside.started.time_ns)
        assert self._epoch is not None
        self._epoch.first_key = aside.key
        self._epoch.loader, self._epoch.asked_ns = aside.loader, aside.asked_ns
        if aside.length is not None:
            self._epoch.batches_left = aside.length - aside.batches

    # calls, backward passes, updates

    def _on_call(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        call: e.Call = detail
        innermost = self._innermost()
        if innermost is not None and innermost.key is not None:
            innermost.called_with_grad |= call.grad
        elif call.grad:
            self._end_evaluations()
            self._begin_without_loader(time_ns, call.other_clock_ns)
        elif self._is_evaluation(subject, call):
            if innermost is None:
                now = self._moment(call.other_clock_ns)
                innermost = _Aside(None, now, now)
                self._asides.append(innermost)
            innermost.samples = _sum(innermost.samples, call.samples)
            innermost.batches += 1
        if call.grad:
            self._trained.add(subject)
            if self._call_samples is None:
                self._call_samples = call.samples
        self._enter(kind)

    def _is_evaluation(self, module: int, call: e.Call) -> bool:
        """Tell a test in between from a teacher's call: it comes after an update, in eval mode."""
        if self._epoch is None or self._epoch.ended is not None:
            return False
        waiting = self._tail is not None and self._tail.batches == 0 and not self._tail.losses
        return waiting and not call.training and module in self._trained

    def _on_called(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._leave()
        if subject and self._step is not None:
            self._phase = FORWARD
        innermost = self._innermost()
        if innermost is not None:
            innermost.last_call = self._moment(detail)

    def _on_backward(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._promote_asides()
        self._begin_without_loader(time_ns, detail)
        current = self._tail or self._step
        if current is not None:
            current.backwards += 1
            self._take_batches(current, one=True)
        self._enter(kind)

    def _on_backward_done(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._leave_to_base()
        current = self._tail or self._step
        if current is not None:
            if detail is not None:
                current.losses.append(detail)
            if self._call_samples is not None:
                current.called_samples.append(self._call_samples)
        self._call_samples = None

    def _on_step(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._promote_asides()
        self._begin_without_loader(time_ns, detail)
        if not self._updating and self._step is not None:
            if self._tail is not None:
                if subject in self._step.optimizers:
                    self._end_step_at(self._tail.begin_ns)
                else:
                    self._join_tail(cut=True)
            self._step.optimizers.add(subject)
        self._updating += 1
        self._enter(kind)

    def _on_stepped(self, kind: int, time_ns: int, subject: Any, detail: Any) -> None:
        self._updating = max(0, self._updating - 1)
        self._leave()
        if self._phase != BACKWARD:  # some update each weight as soon as it has its gradient
            self._phase = self._base()
        if not self._updating and self._step is not None and self._epoch is not None:
            self._join_tail()  # there is one only if an update ended that never began
            self._tail = _Step(time_ns, self._detail)
            self._begin_asides_here()
            self._update_ns, self._update_other_ns = time_ns, detail
            self._epoch.ended = None  # a batch that was fetched before the loader's end
            self.updates += 1

    # steps

    def _join_tail(self, *, cut: bool = False) -> None:
        """Let what came after the update belong to its step.

        `cut`: a second optimiser's work is in it, so that the step has only the detail of that.
        """
        assert self._step is not None
        if self._tail is not None:
            if cut and self._tail.detail != schema.FULL:
                self._step.detail = self._tail.detail
            self._step.add(self._tail)
            self._tail = None

    def _end_step_at(self, time_ns: int) -> None:
        """End the step if it had its update; the next one begins there."""
        if self._step is None or self._tail is None:
            return
        tail = self._tail
        if time_ns == tail.begin_ns:
            self._tail, following = None, tail
        else:
            self._join_tail()
            following = _Step(time_ns, self._detail)
        # A loader may be one batch ahead of the loop (Accelerate's is): each backward pass takes
        # one, and at most one is left for the next step. A step without detail has none noted.
        self._take_batches(self._step, leave=1 if self._step.backwards else self._ahead)
        self._ahead = max(map(len, self._fetched.values()), default=0)
        self._release_held()
        self._held = (self._step, time_ns)
        self._step = following
        self._begin_asides_here()

    def _release_held(self) -> None:
        """Give away the last step: it is followed by another, or its epoch is over."""
        if self._held is None or self._epoch is None:
            return
        (step, end_ns), self._held = self._held, None
        epoch = self._epoch
        epoch.steps += 1
        epoch.out_other_ns += step.out_other_ns
        self.steps += 1
        step_ns = end_ns - step.begin_ns - step.out_ns
        timing = epoch.timing
        timing.data_s += seconds(step.spent[DATA])
        timing.steps_s += seconds(step_ns)
        samples = step.samples
        if samples is None:  # nothing was fetched: what the model was called with
            one_optimizer = len(step.optimizers) == 1
            samples = sum(step.called_samples if one_optimizer else step.called_samples[:1])
        timing.samples += samples
        timing.steps += 1
        load: list[int] = []
        if step.loads:
            first = step.loads[0]
            load = [
                first.worker,
                first.start_ns - self.origin_ns,
                sum(timing.wall_ns for timing in step.loads),
                sum(timing.cpu_ns for timing in step.loads),
            ]
        row = StepRow(
            timing.epoch,
            epoch.steps,
            step.begin_ns - self.origin_ns,
            samples,
            step.spent,
            step_ns,
            load,
            None,
            None,
            step.detail,
        )
        self._unfinished.append((row, step, epoch))

    def _write_finished(self) -> None:
        """Give the sink all steps whose end the device has reached."""
        while self._unfinished:
            row, step, epoch = self._unfinished[0]
            if step.device_laps and not step.device_laps[-1][1].reached():
                return
            self._unfinished.popleft()
            loss = _read(step.losses)
            if loss is not None:
                epoch.loss_sum += loss * row.samples
                epoch.loss_samples += row.samples
            laps = list(_without_taken_out(step.device_begin, step.device_laps))
            columns = device_columns(laps) if laps else None
            self.sink.step(row._replace(loss=loss, device=columns))

    # epochs

    def _begin_without_loader(self, time_ns: int, other_ns: int) -> None:
        """Training goes on, or begins, and no loader is being iterated over."""
        if self._epoch is None and self._innermost() is None:
            self._asides.clear()
            self._step = _Step(time_ns, self._detail)
            self._open_epoch(time_ns, other_ns, time_ns)

    def _open_epoch(self, begin_ns: int, begin_other_ns: int, started_ns: int) -> None:
        timing = EpochTiming(
            self.epochs + 1,
            start_s=seconds(begin_ns - self.origin_ns),
            loader_start_s=seconds(started_ns - begin_ns),
        )
        self._epoch = _Epoch(timing, begin_other_ns)
        self.epochs += 1

    def _close_epoch(self) -> None:
        """End the epoch where its loader ended, or, if that was not seen, with its last update."""
        self._end_evaluations()
        epoch = self._epoch
        if epoch is None:
            return
        ended_ns = other_ns = None
        if epoch.ended is not None:
            ended_ns, other_ns = epoch.ended.time_ns, epoch.ended.other_ns
            self._keep_remnant(epoch.remnant or epoch.ended)
        elif self._tail is not None:
            ended_ns, other_ns = self._tail.begin_ns, self._update_other_ns
            self._end_step_at(self._tail.begin_ns)
        last_end_ns = self._held[1] if self._held else None
        self._release_held()
        self._epoch = self._step = self._tail = None
        self._fetched.clear()
        self._ahead = 0
        if last_end_ns is None:
            self.epochs -= 1  # nothing was trained in it after all
            return
        timing = epoch.timing
        if ended_ns is None or other_ns is None:  # work that led to no update any more
            ended_ns = last_end_ns
            other_ns = self._update_other_ns + last_end_ns - self._update_ns
        timing.loader_stop_s = seconds(max(0, ended_ns - last_end_ns))
        timing.total_s = seconds(other_ns - epoch.begin_other_ns - epoch.out_other_ns)
        for _, step, _ in self._unfinished:
            if step.device_laps:
                step.device_laps[-1][1].wait()
        self._write_finished()
        loss = epoch.loss_sum / epoch.loss_samples if epoch.loss_samples else None
        self.sink.epoch("train", timing, loss)


def _is_anew(earlier: _Aside | _Epoch, later: _Aside) -> bool:
    """Say whether a loader began anew: what it gave earlier was looked at, or broken off."""
    known = later.loader is not None and earlier is not later
    return known and earlier.loader == later.loader and earlier.asked_ns < later.made_ns


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def _read(losses: list[Loss]) -> float | None:
    """Add up what `backward()` was called on: parts of one loss, in a step of several."""
    if not losses:
        return None
    total = 0.0
    for loss in losses:
        value = loss() if callable(loss) else loss
        total += value if isinstance(value, float | int) else value[0]
    return total


def _without_taken_out(
    begin: Mark | None, laps: list[tuple[int, Mark]]
) -> Iterable[tuple[int, float]]:
    for phase, mark in laps:
        assert begin is not None
        if phase != _TAKEN_OUT:
            yield phase, begin.seconds_until(mark)
        begin = mark


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
}

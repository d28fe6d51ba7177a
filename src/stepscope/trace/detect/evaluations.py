"""Loops whose purpose is not yet known, and evaluations.

An iteration over a loader is a `LoopCandidate` until a backward pass makes it training
(`trace.detect.epochs`), or its end makes it an evaluation. Calls without a loader and without
gradients are a candidate too. The time of an evaluation is taken out of the step in which it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.records import schema
from stepscope.trace.detect.pending_batches import PendingBatches
from stepscope.trace.detect.row_builder import RowBuilder
from stepscope.trace.detect.spans import Batch, Epoch, Moment, Step, sum_known
from stepscope.trace.event_buffer import Call, Iteration

# A loop fetches its first batch at once and trains with it. Some scripts create an iterator, or
# inspect a batch, and build their model only then.
LONG_BEFORE_NS = 100_000_000


@dataclass(slots=True)
class LoopCandidate:
    """An iteration, or calls without a loader, that may be training or an evaluation."""

    key: int | None
    begin: Moment
    started: Moment
    # Without a loader it is an evaluation if one of these modules was trained before, or is trained
    # right after it.
    modules: set[int] = field(default_factory=set)
    is_of_trained: bool = False
    last_call: Moment | None = None
    # Where its loader ended, and the time that took.
    end: Moment | None = None
    stop_ns: int = 0
    called_with_grad: bool = False
    length: int | None = None
    # The loader, when its iteration began, and when its first and last batch were asked for.
    loader: int | None = None
    made_ns: int = 0
    is_made_here: bool = False  # not continued long after its creation
    first_asked_ns: int = 0
    asked_ns: int = 0
    batches: int = 0
    samples: int | None = None
    fetched: list[Batch] = field(default_factory=list)
    # The number of batches with a module call, and the samples of these calls, where known.
    called_batches: int = 0
    called_samples: int | None = None
    # Without a loader, by module: the number of its calls and their samples.
    _tested: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    _is_called: bool = True
    _is_ahead: bool = False

    @property
    def used(self) -> bool:
        """Whether it is more than an iterator that was created."""
        return self.key is None or self.batches > 0

    @property
    def is_evaluation(self) -> bool:
        """Whether modules were called in it, and never with gradients."""
        return self.last_call is not None and not self.called_with_grad

    @property
    def has_one_left(self) -> bool:
        """Whether its last batch is still to be used: its loop is one batch behind."""
        return self.is_evaluation and self._is_ahead and self.called_batches == self.batches - 1

    def take_batch(self, batch: Batch) -> None:
        """Keep a batch until its purpose is known."""
        self.batches += 1
        self.samples = sum_known(self.samples, batch[0])
        self.fetched.append(batch)
        self._is_ahead |= self.batches == 2 and not self.called_batches
        self._is_called = False

    def take_call(self, module: int, samples: int | None) -> None:
        """Count a module's call with the last batch or the one before it."""
        self.modules.add(module)
        if not self._is_called:
            self._is_called = True
            self.called_batches += 1
            self.called_samples = sum_known(self.called_samples, samples)

    def take_call_without_loader(self, module: int, samples: int | None, usual: int | None) -> None:
        """Count a module's call without a loader: each call is a batch.

        Where a module continues with the output of another, as a decoder does, only one of them
        counts: the `usual` one, or else the first with known samples.
        """
        self.modules.add(module)
        calls, earlier = self._tested.get(module, (0, None))
        self._tested[module] = (calls + 1, sum_known(earlier, samples))
        countable = [each for each, (_, known) in self._tested.items() if known is not None]
        which = usual if usual in countable else (countable or [*self._tested])[0]
        self.batches, self.samples = self._tested[which]

    def leave_unused(self) -> None:
        """Discard batches after the last call: the loop was interrupted there."""
        del self.fetched[self.called_batches :]
        self.batches = len(self.fetched)
        known = [samples for samples, _ in self.fetched if samples is not None]
        self.samples = sum(known) if known else None


def is_restarted(earlier: LoopCandidate | Epoch, later: LoopCandidate) -> bool:
    """Return whether a loader was restarted after its batches were inspected or abandoned."""
    known = later.loader is not None and earlier is not later
    return known and earlier.loader == later.loader and earlier.asked_ns < later.made_ns


def is_left_for(earlier: LoopCandidate, later: LoopCandidate, after_ns: int) -> bool:
    """Return whether a loader was only inspected, or is outside one that began since."""
    return later.is_made_here and 0 < earlier.asked_ns < later.made_ns - after_ns


@dataclass(slots=True)
class LoopTracker:
    """The current step, epoch and candidates. `now_ns` is the time of the last event.

    `tail` is what came after the last update of `step`, and may still become part of it.
    `completed` is the last complete step and its end: batches left at the end of an epoch are added
    to it. `late` is an evaluation whose loader ended before its last batch was used.
    """

    rows: RowBuilder
    epochs: int = 0
    updates: int = 0
    now_ns: int = 0
    # How far the second clock is ahead of the first. An epoch's total is checked by it. It is read
    # where an epoch begins or may end, because which of these it was is known only later.
    second_clock_ahead_ns: int = 0
    detail: str = schema.FULL

    step: Step | None = None
    tail: Step | None = None
    completed: tuple[Step, int] | None = None
    epoch: Epoch | None = None
    candidates: list[LoopCandidate] = field(default_factory=list)
    late: LoopCandidate | None = None
    pending: PendingBatches = field(default_factory=PendingBatches)
    trained: set[int] = field(default_factory=set)  # modules that were called with gradients
    # The last single-use iteration, and the step in which it was.
    _last_single_use: tuple[Step, LoopCandidate] | None = None
    # The number of updates before the last call with one sample, and whether such calls act.
    _acted_after: int = -1
    _acts: bool = False

    def moment(self) -> Moment:
        """Return the current moment of the step."""
        step = self.tail or self.step
        assert step is not None, "a candidate is part of a step"
        return step.moment(self.now_ns, self.now_ns + self.second_clock_ahead_ns)

    def find_candidate(self, key: int) -> LoopCandidate | None:
        """Return the candidate of an iteration, if there is one."""
        for candidate in self.candidates:
            if candidate.key == key:
                return candidate
        return None

    def innermost(self) -> LoopCandidate | None:
        """Return the candidate in use that began last."""
        for candidate in reversed(self.candidates):
            if candidate.used:
                return candidate
        return None

    def begin_candidate(self, key: int, earlier: Iteration | None = None) -> None:
        """Begin or continue an iteration over a loader; its purpose is known later."""
        if self.step is None:
            self.step = Step(self.now_ns, self.detail)
            self._begin_candidates_here()
        now = self.moment()
        candidate = LoopCandidate(key, now, now, made_ns=self.now_ns, is_made_here=earlier is None)
        if earlier is not None:
            candidate.length, candidate.loader = earlier
        self.candidates.append(candidate)

    def begin_calls(self) -> LoopCandidate:
        """Begin a candidate for module calls without a loader, perhaps an evaluation.

        If the batch came from a single-use iterator, the candidate begins with that.
        """
        if self.step is None:
            self.step = Step(self.now_ns, self.detail)
        begin = started = self.moment()
        if (
            self.pending.single_use
            and self._last_single_use
            and self._last_single_use[0] is (self.tail or self.step)
        ):
            begin, started = self._last_single_use[1].begin, self._last_single_use[1].started
        self.candidates.append(LoopCandidate(None, begin, started))
        return self.candidates[-1]

    def use_candidate(self, candidate: LoopCandidate) -> None:
        """Fetch a batch of a candidate.

        If its iterator was created long before any training, the candidate begins now.
        """
        candidate.asked_ns = self.now_ns
        if candidate.used:
            return
        candidate.first_asked_ns = self.now_ns
        made_ns = candidate.started.time_ns
        if self.epoch is None and self.now_ns - made_ns > LONG_BEFORE_NS:
            took_ns = made_ns - candidate.begin.time_ns
            candidate.started = now = self.moment()
            begin_ns, begin_other_ns = now.time_ns - took_ns, now.other_ns - took_ns
            candidate.begin = now._replace(time_ns=begin_ns, other_ns=begin_other_ns)

    def _begin_candidates_here(self) -> None:
        """Begin the open candidates with the new step, in which their time is counted.

        An iterator that was only created begins when it is used.
        """
        if not self.candidates:
            return
        self.candidates = [candidate for candidate in self.candidates if candidate.used]
        for candidate in self.candidates:
            candidate.begin = candidate.started = self.moment()
            candidate.last_call = candidate.last_call and candidate.begin

    # evaluations

    def is_evaluation(self, module: int, call: Call, samples_trained: int | None) -> bool:
        """Return whether a call without gradients belongs to an evaluation.

        An evaluation comes after an update, in eval mode; other such calls are those of a teacher.
        In reinforcement learning a network is called with one sample after every update, to choose
        what to learn from next. A single call of this kind may be an evaluation.
        """
        if call.training:
            return False
        if self.epoch is not None:  # else the module may be trained later
            if self.epoch.ended is not None:
                is_between = self.innermost() is not None or self.has_trained_all()
            else:
                tail = self.tail
                is_between = tail is not None and not tail.batches and not tail.losses
            if not is_between or module not in self.trained:
                return False
        if call.samples != 1 or samples_trained == 1:
            return True
        if self._acted_after < self.updates:
            self._acts = self._acted_after == self.updates - 1
            self._acted_after = self.updates
        return not self._acts

    def has_trained_all(self) -> bool:
        """Return whether the epoch's loader has ended and none of its batches is pending."""
        epoch, step = self.epoch, self.step
        if epoch is None or epoch.ended is None or step is None or self.innermost() is not None:
            return False
        return self.tail is None and not step.batches and not self.pending

    def end_loader(self, candidate: LoopCandidate, stop_ns: int, *, is_exhausted: bool) -> None:
        """End an iteration whose batches were not trained with.

        Its loader took `stop_ns` to end. An evaluation ends later if its last batch may still be
        used.
        """
        self.end_evaluations(since=candidate)
        candidate.end, candidate.stop_ns = self.moment(), stop_ns
        length = candidate.length
        is_whole = is_exhausted and (length is None or candidate.batches >= length)
        if is_whole and candidate.has_one_left:
            self.candidates.remove(candidate)
            self.late = candidate
            return
        if candidate.last_call is not None and not is_whole:
            candidate.leave_unused()
        elif candidate.last_call is None and len(candidate.fetched) == 1:
            # A single-use iterator that is gone: the purpose of its batch is not known.
            step = self.tail or self.step
            self._last_single_use = None if step is None else (step, candidate)
            self.pending.keep_single_use(candidate.fetched[0])
        self.candidates.remove(candidate)
        self._end(candidate, candidate.end)

    def end_late(self) -> None:
        """End the evaluation whose last batch was used after its loader ended, if any."""
        if self.late is not None:
            candidate, self.late = self.late, None
            assert candidate.end is not None
            self._end(candidate, candidate.end)

    def end_evaluations(self, since: LoopCandidate | None = None) -> None:
        """End evaluations whose loader was not exhausted: the training continues.

        They end with their last call, as do those without a loader. With `since`, only candidates
        that began after it are ended: they lie inside it.
        """
        if not self.candidates:
            return
        first = 0 if since is None else self.candidates.index(since) + 1
        for candidate in [each for each in self.candidates[first:] if each.is_evaluation]:
            assert candidate.last_call is not None
            if candidate.key is not None:
                candidate.leave_unused()
            self.candidates.remove(candidate)
            self._end(candidate, candidate.last_call)

    def _end(self, candidate: LoopCandidate, end: Moment) -> None:
        """Write an evaluation, if a module was called, and take its time out of the step."""
        step, begin = self.tail or self.step, candidate.begin
        is_test = candidate.key is not None or candidate.is_of_trained
        if candidate.last_call is not None and step is not None and is_test:
            ended = None if self.epoch is None else self.epoch.ended
            if ended is None or begin.time_ns >= ended.time_ns:
                step.take_out(begin, end)
                self._last_single_use = None
                for other in self.candidates:
                    other.begin = other.begin.without(begin, end)
                    other.started = other.started.without(begin, end)
                    other.last_call = other.last_call and other.last_call.without(begin, end)
            self.rows.evaluation(self.epochs, candidate, end)
        if self.epoch is None and not self.candidates:
            self.step = None

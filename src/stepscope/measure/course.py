"""The course of a training: the step and the epoch that are under way, and what stands aside.

Where a step or an epoch begins and ends is carried out here; `measure.recognize` says, event by
event, what is to be carried out. After an update it is not known yet whether its step is over, so
what comes then is a **tail** that may join it. A step that ended is **held** until the next one
has, because batches that lead to no update any more still go to it. An iteration stands **aside**
until a backward pass makes it training, or its end makes it an evaluation.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from stepscope.measure.clock import seconds
from stepscope.measure.finished import Finished
from stepscope.measure.rounds import Rounds
from stepscope.measure.spans import Aside, Batch, Epoch, Moment, Step, is_anew
from stepscope.measure.steps import OTHER, EpochTiming
from stepscope.records import schema


@dataclass(slots=True)
class Course:
    """What is under way. `now_ns` is the time of the last event."""

    finished: Finished
    steps: int = 0
    epochs: int = 0
    now_ns: int = 0
    detail: str = schema.FULL

    step: Step | None = None
    tail: Step | None = None
    held: tuple[Step, int] | None = None
    epoch: Epoch | None = None
    asides: list[Aside] = field(default_factory=list)
    _fetched: defaultdict[int, deque[Batch]] = field(default_factory=lambda: defaultdict(deque))
    _ahead: int = 0
    _update_ns: int = 0
    _update_other_ns: int = 0

    def moment(self, other_ns: int) -> Moment:
        """Keep what was spent until now."""
        step = self.tail or self.step
        assert step is not None, "there is nothing to be aside of"
        return step.moment(self.now_ns, other_ns)

    # what stands aside

    def find_aside(self, key: int) -> Aside | None:
        """Return the iteration of which it is not known yet what it is for."""
        for aside in self.asides:
            if aside.key == key:
                return aside
        return None

    def innermost(self) -> Aside | None:
        """Return what was begun last and is used."""
        for aside in reversed(self.asides):
            if aside.used:
                return aside
        return None

    def begin_aside(self, key: int, other_ns: int) -> None:
        """A loader is iterated over: what for will be known later."""
        if self.step is None:
            self.step = Step(self.now_ns, self.detail)
            self._begin_asides_here()
        now = self.moment(other_ns)
        self.asides.append(Aside(key, now, now, made_ns=self.now_ns))

    def _begin_asides_here(self) -> None:
        """Let what is open begin with the step that begins now: its time is counted in that.

        An iterator that was only made so far, to be used later, begins when it is used.
        """
        if not self.asides:
            return
        self.asides = [aside for aside in self.asides if aside.used]
        for aside in self.asides:
            other_ns = aside.begin.other_ns + self.now_ns - aside.begin.time_ns
            aside.begin = aside.started = self.moment(other_ns)
            aside.last_call = aside.last_call and aside.begin

    def end_aside(self, aside: Aside, end: Moment, stop_ns: int = 0) -> None:
        """Nothing was trained in it: an evaluation, if a module was called."""
        self.asides.remove(aside)
        step = self.tail or self.step
        if aside.last_call is not None and step is not None:
            if self.epoch is not None and self.epoch.ended is None:
                step.take_out(aside.begin, end)
            self.finished.evaluation(self.epochs, aside, end, stop_ns)
        if self.epoch is None and not self.asides:
            self.step = None

    def end_evaluations(self, since: Aside | None = None) -> None:
        """The training goes on: evaluations whose loader was not read to its end are over.

        They end with the last call in them. So do those without a loader. `since` ends only those
        that began after it: they are in what it took.
        """
        if not self.asides:
            return
        first = 0 if since is None else self.asides.index(since) + 1
        for aside in [aside for aside in self.asides[first:] if aside.is_evaluation]:
            assert aside.last_call is not None
            self.end_aside(aside, aside.last_call)

    def promote_asides(self) -> None:
        """There was a backward pass: what is open, and no evaluation, is training."""
        if not self.asides:
            return
        self.asides = [aside for aside in self.asides if aside.used]
        if not self.asides:
            return
        *earlier, innermost = self.asides
        if any(aside.is_evaluation for aside in earlier) or innermost.key is None:
            self.end_evaluations()
        self.asides = [aside for aside in self.asides if aside.key is not None]
        self.asides = [
            aside
            for aside in self.asides
            if not any(is_anew(aside, later) for later in self.asides)
        ]
        if not self.asides:
            return
        first, epoch = self.asides[0], self.epoch
        if epoch is None or epoch.first_key is None or is_anew(epoch, first):
            self._begin_epoch_of(first)
        assert self.epoch is not None
        step = self.tail or self.step
        assert step is not None
        for aside in self.asides:
            assert aside.key is not None
            self.epoch.keys.add(aside.key)
            step.batches += aside.batches
            self._fetched[aside.key] += aside.fetched
        self.asides.clear()

    # batches

    def keep_batch(self, key: int, batch: Batch) -> None:
        """Keep a batch of a training loader until a step takes it."""
        step = self.tail or self.step
        if step is not None:
            step.batches += 1
            self._fetched[key].append(batch)

    def take_batches(self, step: Step, *, one: bool = False, leave: int = 0) -> None:
        """Let batches that were fetched belong to a step: of each loader the oldest, or all."""
        for waiting in self._fetched.values():
            taken = 0
            while len(waiting) > leave and not (one and taken):
                step.take_batch(waiting.popleft())
                taken += 1

    # steps

    def begin_plain_step(self, time_ns: int, key: int, phase: int) -> Step | None:
        """Begin a step with a fetch of the only loader; None where more than that is under way."""
        epoch, tail = self.epoch, self.tail
        if epoch is None or tail is None or self.asides or self._ahead:
            return None
        if epoch.first_key != key or epoch.keys != {key} or any(self._fetched.values()):
            return None
        tail.spent[phase] += time_ns - self.now_ns
        self.now_ns = epoch.asked_ns = time_ns
        self.end_step_at(time_ns)
        if epoch.batches_left:
            epoch.batches_left -= 1
        return self.step

    def pass_rounds(self, rounds: Rounds, key: int) -> Step:
        """Go from the first of several rounds, which is under way, to the last, which begins.

        Nothing can be added to those between any more: they are given away as they are.
        """
        last, epoch = len(rounds) - 1, self.epoch
        step = self.begin_plain_step(rounds.begins_ns[1], key, OTHER)
        assert step is not None, "nothing comes between two rounds"
        assert epoch is not None
        if last == 1:
            return step
        self._release_held()
        between = range(1, last)
        self.steps += len(between)
        self.finished.rounds(rounds, between, epoch, self.detail)
        if epoch.batches_left:
            epoch.batches_left = max(0, epoch.batches_left - len(between))
        self.now_ns = epoch.asked_ns = rounds.begins_ns[last]
        self.step = Step(self.now_ns, self.detail)
        return self.step

    def begin_tail(self, other_ns: int) -> None:
        """There was an update: what comes now may belong to its step, or to the next."""
        assert self.epoch is not None
        self.join_tail()  # there is one only if an update ended that never began
        self.tail = Step(self.now_ns, self.detail)
        self._begin_asides_here()
        self._update_ns, self._update_other_ns = self.now_ns, other_ns
        self.epoch.ended = None  # a batch that was fetched before the loader's end

    def join_tail(self, *, cut: bool = False) -> None:
        """Let what came after the update belong to its step.

        `cut`: a second optimiser's work is in it, so that the step has only the detail of that.
        """
        assert self.step is not None
        if self.tail is not None:
            if cut and self.tail.detail != schema.FULL:
                self.step.detail = self.tail.detail
            self.step.add(self.tail)
            self.tail = None

    def end_step_at(self, time_ns: int) -> None:
        """End the step if it had its update; the next one begins there."""
        step, tail = self.step, self.tail
        if step is None or tail is None:
            return
        if time_ns == tail.begin_ns:
            self.tail, following = None, tail
        else:
            self.join_tail()
            following = Step(time_ns, self.detail)
        # A loader may be one batch ahead of the loop (Accelerate's is): each backward pass takes
        # one, and at most one is left for the next step. A step without detail has none noted.
        self.take_batches(step, leave=1 if step.backwards else self._ahead)
        self._ahead = max(map(len, self._fetched.values()), default=0)
        self._release_held()
        self.held = (step, time_ns)
        self.step = following
        self._begin_asides_here()

    def _release_held(self) -> None:
        """Give away the last step: it is followed by another, or its epoch is over."""
        if self.held is None or self.epoch is None:
            return
        (step, end_ns), self.held = self.held, None
        self.steps += 1
        self.finished.step(step, self.epoch, end_ns)

    def _keep_remnant(self, until: Moment) -> None:
        """Batches that led to no update any more go to the step before: it lasts until there."""
        step = self.step
        if step is None or self.held is None or self.tail is not None:
            return
        held, _ = self.held
        if step.batches:
            step.cut_at(until)
            held.add(step)
            self.held = (held, until.time_ns)
        self.take_batches(held)

    # epochs

    def begin_without_loader(self, other_ns: int) -> None:
        """Training goes on, or begins, and no loader is being iterated over."""
        if self.epoch is None and self.innermost() is None:
            self.asides.clear()
            self.step = Step(self.now_ns, self.detail)
            self._open_epoch(self.now_ns, other_ns, self.now_ns)

    def _begin_epoch_of(self, aside: Aside) -> None:
        """Begin an epoch where an iteration began; its first step, where its loader had started."""
        current = self.tail or self.step
        assert current is not None
        first_step = current.since(aside.started, self.detail)
        # Updates without a loader may have come before: a warm-up, an earlier part of the training.
        asides, self.asides = self.asides, []
        self.close_epoch()
        self.asides, self.step = asides, first_step
        epoch = self._open_epoch(aside.begin.time_ns, aside.begin.other_ns, aside.started.time_ns)
        epoch.first_key = aside.key
        epoch.loader, epoch.asked_ns = aside.loader, aside.asked_ns
        if aside.length is not None:
            epoch.batches_left = aside.length - aside.batches

    def _open_epoch(self, begin_ns: int, begin_other_ns: int, started_ns: int) -> Epoch:
        timing = EpochTiming(
            self.epochs + 1,
            start_s=seconds(begin_ns - self.finished.origin_ns),
            loader_start_s=seconds(started_ns - begin_ns),
        )
        self.epoch = Epoch(timing, begin_other_ns)
        self.epochs += 1
        return self.epoch

    def is_over(self, epoch: Epoch, iterated: int) -> bool:
        """Say whether an epoch is behind us when a loader begins to be iterated over.

        Frameworks know how many batches there are and do not ask for one more; a loader with
        persistent workers that a loop broke off is seen again only when it begins anew.
        """
        all_fetched = epoch.batches_left == 0 and self.tail is not None
        return epoch.ended is not None or iterated in epoch.keys or all_fetched

    def close_epoch(self) -> None:
        """End the epoch where its loader ended, or, if that was not seen, with its last update."""
        self.end_evaluations()
        epoch = self.epoch
        if epoch is None:
            return
        ended_ns = other_ns = None
        if epoch.ended is not None:
            ended_ns, other_ns = epoch.ended.time_ns, epoch.ended.other_ns
            self._keep_remnant(epoch.remnant or epoch.ended)
        elif self.tail is not None:
            ended_ns, other_ns = self.tail.begin_ns, self._update_other_ns
            self.end_step_at(self.tail.begin_ns)
        last_end_ns = self.held[1] if self.held else None
        self._release_held()
        self.epoch = self.step = self.tail = None
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
        self.finished.epoch(epoch)

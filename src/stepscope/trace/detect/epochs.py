"""Beginning and end of steps and epochs.

`EpochTracker` begins and ends them as `trace.detect.steps` finds them in the events. The epoch of a
loop over a loader begins with its first backward pass; until then the loop may be an evaluation
(`trace.detect.evaluations`).
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.meter.clock import seconds
from stepscope.meter.step_rows import EpochTiming
from stepscope.records import schema
from stepscope.trace.detect.evaluations import (
    LONG_BEFORE_NS,
    LoopCandidate,
    LoopTracker,
    is_left_for,
    is_restarted,
)
from stepscope.trace.detect.spans import Batch, Epoch, Moment, Step


@dataclass(slots=True)
class EpochTracker(LoopTracker):
    """Begins and ends steps and epochs; `steps` is the number of steps passed to the rows."""

    steps: int = 0

    def promote_candidates(self) -> None:
        """Turn open candidates that are not evaluations into training, at a backward pass."""
        if self.candidates:
            self._drop_what_does_not_train()
        if not self.candidates:
            return
        epoch = self.epoch
        continues = epoch is not None and epoch.may_continue and self._is_inside(epoch)
        if epoch is not None and continues:  # the outer loader gives no batches
            self.candidates = [each for each in self.candidates if each.key not in epoch.outer_keys]
        left = [
            each
            for each in self.candidates
            if any(is_left_for(each, later, LONG_BEFORE_NS) for later in self.candidates)
        ]
        self.candidates = [each for each in self.candidates if each not in left]
        # Of several loaders, the one that the loop iterates over is asked before those that it
        # draws from, although their iterators may have been created before it.
        first = min(self.candidates, key=lambda each: each.first_asked_ns)
        if epoch is not None and continues:
            epoch.first_key, epoch.loader, epoch.asked_ns = first.key, None, first.asked_ns
            epoch.batches_left = epoch.ended = epoch.remnant = None
        elif (
            epoch is None
            or epoch.first_key is None
            or epoch.may_continue
            or is_restarted(epoch, first)
        ):
            epoch = self._begin_epoch_of(first)
        for candidate in self.candidates:
            self._take_in(epoch, candidate)
        epoch.outer_keys.update(each.key for each in left if each.key is not None)
        self.candidates.clear()

    def _drop_what_does_not_train(self) -> None:
        """Drop unused and restarted iterators, and end evaluations."""
        self.candidates = [each for each in self.candidates if each.used]
        if not self.candidates:
            return
        *earlier, innermost = self.candidates
        if any(each.is_evaluation for each in earlier) or innermost.key is None:
            self.end_evaluations()
        kept = [each for each in self.candidates if each.key is not None]
        self.candidates = [
            each for each in kept if not any(is_restarted(each, later) for later in kept)
        ]

    def _take_in(self, epoch: Epoch, candidate: LoopCandidate) -> None:
        """Add a loader to those of the epoch, and its batches to the step."""
        step = self.tail or self.step
        assert step is not None
        assert candidate.key is not None
        epoch.keys.add(candidate.key)
        if candidate.loader is not None and candidate.key != epoch.first_key:
            epoch.drawn_from.add(candidate.loader)
        if candidate.is_made_here:
            epoch.joined_ns = max(epoch.joined_ns, candidate.made_ns)
        step.batches += candidate.batches
        self.pending.keep(candidate.key, candidate.fetched)

    def _is_inside(self, epoch: Epoch) -> bool:
        """Return whether an outer loader gave its next batch and another loader began then."""
        return any(
            candidate.key in epoch.outer_keys
            and any(is_left_for(candidate, each, 0) for each in self.candidates)
            for candidate in self.candidates
        )

    def rejoin(self, key: int, loader: int | None) -> None:
        """Make an outer loader that is asked again, while others continue, the first."""
        epoch = self.epoch
        if epoch is not None and epoch.ended is None and key in epoch.outer_keys:
            epoch.outer_keys.discard(key)
            epoch.keys.add(key)
            epoch.first_key, epoch.loader, epoch.batches_left = key, loader, None

    def end_inner(self, epoch: Epoch, key: int) -> bool:
        """Return whether the end of a loader beside the first is the end of the epoch."""
        is_first_left = epoch.asked_ns < epoch.joined_ns and epoch.keys == {epoch.first_key, key}
        if epoch.first_key is None or not is_first_left:
            return False
        epoch.outer_keys.add(epoch.first_key)
        epoch.keys.discard(epoch.first_key)
        return True

    # batches

    def keep_batch(self, key: int, batch: Batch) -> None:
        """Keep a batch of a training loader until a step uses it."""
        step = self.tail or self.step
        if step is not None:
            step.batches += 1
            self.pending.keep(key, [batch])

    def train_with_batches(self, called_with: int | None) -> None:
        """Assign batches to a backward pass; `called_with` are the model's samples, if known."""
        step = self.tail or self.step
        if step is None:
            return
        before = self.completed[0] if self.completed else None
        if self.pending.train(step, called_with, before) and self.epoch and self._last_single_use:
            loader = self._last_single_use[1].loader
            if loader is not None:
                self.epoch.drawn_from.add(loader)

    # steps

    def begin_tail(self) -> Step:
        """Begin the tail after an update: it belongs to this step or to the next."""
        assert self.epoch is not None
        self.join_tail()  # only if an update ended that never began
        self.tail = Step(self.now_ns, self.detail)
        self._begin_candidates_here()
        self.epoch.ended = None  # its batch was fetched before the loader's end
        return self.tail

    def join_tail(self, *, cut: bool = False) -> None:
        """Add the tail to the step.

        `cut`: the tail holds a second optimiser's work, so the step has only the detail of the
        tail.
        """
        assert self.step is not None
        if self.tail is not None:
            if cut and self.tail.detail != schema.FULL:
                self.step.detail = self.tail.detail
            self.step.add(self.tail)
            self.tail = None

    def end_step_at(self, time_ns: int) -> None:
        """End the step if it had its update, and begin the next one there."""
        step, tail = self.step, self.tail
        if step is None or tail is None:
            return
        if time_ns == tail.begin_ns:
            self.tail, following = None, tail
        else:
            self.join_tail()
            following = Step(time_ns, self.detail)
        self.pending.end(step, is_first=self.is_first_step)
        self.release_completed()
        self.completed = (step, time_ns)
        self.step = following
        self._begin_candidates_here()

    @property
    def is_first_step(self) -> bool:
        """Whether the step is the first of its epoch."""
        return self.epoch is not None and not self.epoch.timing.steps and self.completed is None

    def release_completed(self) -> None:
        """Pass the completed step to the rows: another follows, or its epoch is over."""
        if self.completed is None or self.epoch is None:
            return
        (step, end_ns), self.completed = self.completed, None
        self.steps += 1
        self.rows.step(step, self.epoch, end_ns)

    def _keep_remnant(self, until: Moment) -> None:
        """Add batches without a further update to the completed step, which lasts until then."""
        step = self.step
        if step is None or self.completed is None or self.tail is not None:
            return
        completed, _ = self.completed
        if step.batches:
            step.cut_at(until)
            completed.add(step)
            self.completed = (completed, until.time_ns)
        # A batch that a loop only fetched before it stopped was not trained with. Without detail
        # this is unknown.
        if step.backwards or step.detail != schema.FULL:
            self.pending.take_all(completed)

    # epochs

    def begin_without_loader(self, *, has_new_optimizer: bool = False) -> None:
        """Begin or continue training without a loader.

        After the end of a loader, a new optimiser belongs to another training.
        """
        if has_new_optimizer and self.has_trained_all():
            self.close_epoch()
        if self.epoch is None and self.innermost() is None:
            self.candidates.clear()
            self.step = Step(self.now_ns, self.detail)
            self._open_epoch(self.now_ns, self.now_ns + self.second_clock_ahead_ns, self.now_ns)

    def forget_trial(self) -> bool:
        """Discard an epoch without a loader that only called a model, to try it."""
        epoch, step = self.epoch, self.step
        if (
            epoch is None
            or epoch.first_key is not None
            or epoch.timing.steps
            or self.completed
            or self.tail
        ):
            return False
        if step is None or step.backwards:
            return False
        self.epoch = self.step = None
        self.epochs -= 1
        return True

    def _begin_epoch_of(self, candidate: LoopCandidate) -> Epoch:
        """Begin an epoch with a candidate, and its first step where the loader had started."""
        current = self.tail or self.step
        assert current is not None
        first_step = current.since(candidate.started, self.detail)
        earlier = self.epoch
        if earlier and earlier.ended and earlier.ended.time_ns > candidate.begin.time_ns:
            earlier.ended = earlier.remnant = candidate.begin  # its iterator outlived it
        # Updates without a loader may have come before: a warm-up, an earlier part of the training.
        candidates, self.candidates = self.candidates, []
        self.close_epoch()
        self.candidates, self.step = candidates, first_step
        epoch = self._open_epoch(
            candidate.begin.time_ns, candidate.begin.other_ns, candidate.started.time_ns
        )
        epoch.first_key = candidate.key
        epoch.loader, epoch.asked_ns = candidate.loader, candidate.asked_ns
        if candidate.length is not None:
            epoch.batches_left = candidate.length - candidate.batches
        return epoch

    def _open_epoch(self, begin_ns: int, begin_other_ns: int, started_ns: int) -> Epoch:
        timing = EpochTiming(
            self.epochs + 1,
            start_s=seconds(begin_ns - self.rows.origin_ns),
            loader_start_s=seconds(started_ns - begin_ns),
        )
        self.epoch = Epoch(timing, begin_other_ns)
        self.epochs += 1
        return self.epoch

    def is_over(self, epoch: Epoch, iterated: int, loader: int | None) -> bool:
        """Return whether the epoch is over when an iteration begins.

        Frameworks know the number of batches and do not ask for one more. A loader with persistent
        workers whose loop was interrupted is seen again only when it restarts. But the last batch
        may still be pending, or be used together with one of a loader from which every step draws.
        """
        if iterated in epoch.keys or (epoch.ended is not None and not epoch.may_continue):
            return True
        if epoch.batches_left != 0 or self.tail is None or loader in epoch.drawn_from:
            return False
        # Will the step that has updated have used every fetched batch?
        has_taken = self.step is not None and self.step.backwards
        return self.pending.longest() <= (0 if has_taken else 1)

    def close_epoch(self) -> None:
        """End the epoch where its loader ended or, if that was not seen, with its last update."""
        self.end_late()
        self.end_evaluations()
        epoch = self.epoch
        if epoch is None:
            return
        ended_ns = None
        if epoch.ended is not None:
            ended_ns = epoch.ended.time_ns
            self._keep_remnant(epoch.remnant or epoch.ended)
        elif self.tail is not None:
            ended_ns = self.tail.begin_ns
            self.end_step_at(self.tail.begin_ns)
            # No backward pass was recorded that used the last batch, and none follows.
            if self.completed and not self.completed[0].backwards and epoch.batches_left == 0:
                self.pending.take_all(self.completed[0])
        last_end_ns = self.completed[1] if self.completed else None
        self.release_completed()
        self.epoch = self.step = self.tail = None
        self.pending.clear()
        if last_end_ns is None:
            self.epochs -= 1  # nothing was trained in it
            return
        timing = epoch.timing
        if ended_ns is None:  # work without a further update
            ended_ns = last_end_ns
        other_ns = epoch.ended.other_ns if epoch.ended else ended_ns + self.second_clock_ahead_ns
        timing.loader_stop_s = seconds(max(0, ended_ns - last_end_ns))
        timing.total_s = seconds(other_ns - epoch.begin_other_ns - epoch.out_other_ns)
        self.rows.epoch(epoch)

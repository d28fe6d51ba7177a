"""Batches that were fetched, until a step takes them, or nobody does.

A loader may be one batch ahead of the loop (Accelerate's is), or several may be fetched at once for
the backward passes of one step. Others are skipped: so the samples that the model was called with
are asked wherever more batches wait than the step before has used and left.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepscope.trace.detect.spans import Batch, Step

_LOOSE_AT_MOST = 8  # that a step takes from iterators of their own; more were only looked at


@dataclass(slots=True)
class PendingBatches:
    """What was fetched and not taken yet, the oldest first; `ahead` after the last step's end."""

    ahead: int = 0
    # The same after the first step of an epoch, the last that was seen in detail.
    _ahead_from_start: int = 0
    # Batches of iterators that were made for one batch and let go of: `next(iter(loader))`.
    loose: list[Batch] = field(default_factory=list)
    _loose_before: list[Batch] = field(default_factory=list)
    _fetched: defaultdict[int, deque[Batch]] = field(default_factory=lambda: defaultdict(deque))
    # In the step that is under way: batches of each loader that were skipped, it seems, and the
    # samples of the calls before its only backward pass so far.
    _skipped: dict[int, list[Batch]] = field(default_factory=dict)
    _called_with: int | None = None

    def __bool__(self) -> bool:
        return any(self._fetched.values())

    def keep(self, loader: int, batches: Iterable[Batch]) -> None:
        """Keep batches of a training loader."""
        self._fetched[loader] += batches

    def train(self, step: Step, called_with: int | None, before: Step | None) -> bool:
        """Let a backward pass of the step take the oldest batch of each loader.

        Older ones were skipped if there are more than the step before has used and left, and the
        model was called with as many samples as the newest has. Say whether those of iterators of
        their own are taken too.
        """
        is_first = not step.backwards
        step.backwards += 1
        self._called_with = called_with if is_first else None
        if is_first:
            self._skipped.clear()
        for loader, waiting in self._fetched.items():
            if is_first and before is not None and called_with is not None:
                usual = max(1, before.backwards) + self.ahead
                skipped = self._skipped[loader] = []
                while len(waiting) > usual and waiting[-1][0] == called_with:
                    skipped.append(waiting.popleft())
            elif not is_first:  # fetched for the passes that follow, after all
                waiting.extendleft(reversed(self._skipped.pop(loader, [])))
            if waiting:
                step.take_batch(waiting.popleft())
        takes_loose = called_with in (None, *(samples for samples, _ in self.loose))
        takes_loose = takes_loose and bool(self.loose)
        if takes_loose:
            self.take_loose(step)
        self.loose.clear()
        return takes_loose

    def end(self, step: Step, *, is_first: bool) -> None:
        """Let a step that ends, the first of its epoch or not, have what was fetched for it.

        Each backward pass has taken a batch, and at most one is left for the next step. A step
        without detail has no backward pass noted: as many are left as by the one before, or by the
        first step of an earlier epoch. Where more are left, the calls tell whether they were put
        together or passed over, to go on where an epoch was broken off.
        """
        called_with, self._called_with = self._called_with, None
        waiting = [batch for each in self._fetched.values() for batch in each]
        if called_with is not None and self.longest() > max(self.ahead, int(is_first)):
            if called_with == sum(samples or 0 for samples, _ in waiting) + (step.samples or 0):
                self.take_all(step)
            elif is_first and waiting[-1][0] == called_with:
                self._fetched.clear()
        left = 1 if step.backwards else self.ahead
        if is_first and not step.backwards and self.longest() > self._ahead_from_start:
            left = self._ahead_from_start
        self.take_all(step, but=left)
        self.ahead = self.longest()
        if is_first and step.backwards:
            self._ahead_from_start = self.ahead

    def take_all(self, step: Step, but: int = 0) -> None:
        """Let all that wait belong to a step, but for some of each loader."""
        for waiting in self._fetched.values():
            while len(waiting) > but:
                step.take_batch(waiting.popleft())

    def clear(self) -> None:
        """Forget what the loaders of an epoch gave: it is over."""
        self._fetched.clear()
        self.ahead = 0

    def longest(self) -> int:
        """Count what waits of the loader that is furthest ahead."""
        return max(map(len, self._fetched.values()), default=0)

    # iterators that are made for one batch

    def ask_another(self) -> None:
        """Another iterator is asked: what was let loose before is only used with its batch."""
        self._loose_before = self.loose[-_LOOSE_AT_MOST:]
        self.loose = []

    def let_loose(self, batch: Batch) -> None:
        """The iterator that was made for this batch is gone; it may be trained with even so."""
        self.loose = [*self._loose_before, batch]

    def take_loose(self, step: Step) -> None:
        """Let them belong to a step."""
        for batch in self.loose:
            step.take_batch(batch)
            step.batches += 1
        self.loose.clear()

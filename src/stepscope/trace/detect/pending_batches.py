"""Batches that were fetched and not yet used by a step.

A loader may be one batch ahead of the loop (Accelerate's is), several batches may be fetched at
once for the backward passes of one step, and others are skipped. Where more batches are pending
than the previous step used and left, the samples that the model was called with decide.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepscope.trace.detect.spans import Batch, Step

_SINGLE_USE_AT_MOST = 8  # batches of single-use iterators in a step; more were only inspected


@dataclass(slots=True)
class PendingBatches:
    """Pending batches, oldest first. `ahead` is how many were left after the last step."""

    ahead: int = 0
    # The same after the first step of an epoch, the last one that had full detail.
    _ahead_from_start: int = 0
    # Batches of single-use iterators: `next(iter(loader))`.
    single_use: list[Batch] = field(default_factory=list)
    _single_use_before: list[Batch] = field(default_factory=list)
    _fetched: defaultdict[int, deque[Batch]] = field(default_factory=lambda: defaultdict(deque))
    # In the current step: batches of each loader that seem to have been skipped, and the samples of
    # the calls before its only backward pass so far.
    _skipped: dict[int, list[Batch]] = field(default_factory=dict)
    _called_with: int | None = None

    def __bool__(self) -> bool:
        return any(self._fetched.values())

    def keep(self, loader: int, batches: Iterable[Batch]) -> None:
        """Add batches of a training loader."""
        self._fetched[loader] += batches

    def train(self, step: Step, called_with: int | None, before: Step | None) -> bool:
        """Assign the oldest batch of each loader to a backward pass of the step.

        Older batches were skipped if more are pending than the previous step used and left, and the
        newest has as many samples as the model was called with. Return whether the batches of
        single-use iterators were assigned too.
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
            elif not is_first:  # they were fetched for the passes that follow
                waiting.extendleft(reversed(self._skipped.pop(loader, [])))
            if waiting:
                step.take_batch(waiting.popleft())
        takes_single_use = called_with in (None, *(samples for samples, _ in self.single_use))
        takes_single_use = takes_single_use and bool(self.single_use)
        if takes_single_use:
            self.take_single_use(step)
        self.single_use.clear()
        return takes_single_use

    def end(self, step: Step, *, is_first: bool) -> None:
        """Assign the remaining batches of a step that ends.

        Each backward pass has taken a batch, and at most one is left for the next step. A step
        without detail has no recorded backward pass: as many batches are left as after the previous
        step, or after the first step of an earlier epoch. Where more are left, the samples of the
        calls show whether the batches were combined, or skipped to resume an interrupted epoch.
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
        """Assign all pending batches to a step, except `but` of each loader."""
        for waiting in self._fetched.values():
            while len(waiting) > but:
                step.take_batch(waiting.popleft())

    def clear(self) -> None:
        """Discard the batches of an epoch that is over."""
        self._fetched.clear()
        self.ahead = 0

    def longest(self) -> int:
        """Return the number of pending batches of the loader that is furthest ahead."""
        return max(map(len, self._fetched.values()), default=0)

    # single-use iterators

    def begin_another(self) -> None:
        """Begin another iterator: earlier single batches are only used together with its batch."""
        self._single_use_before = self.single_use[-_SINGLE_USE_AT_MOST:]
        self.single_use = []

    def keep_single_use(self, batch: Batch) -> None:
        """Keep the batch of a single-use iterator that is gone: it may still be trained with."""
        self.single_use = [*self._single_use_before, batch]

    def take_single_use(self, step: Step) -> None:
        """Assign the batches of single-use iterators to a step."""
        for batch in self.single_use:
            step.take_batch(batch)
            step.batches += 1
        self.single_use.clear()


@dataclass(slots=True)
class ModelCalls:
    """The calls with gradients since the last backward pass, and their samples.

    Without a loader, these are the samples of the step. With one, they distinguish batches that
    were used from batches that were skipped. Of several modules, the one counted the last time
    counts again, with its first call: a metric, or an evaluation that did not disable gradients,
    may be called before it. A call in training mode takes precedence over one in eval mode.
    """

    usual: int | None = None  # the module that counted the last time
    samples_trained: int | None = None  # in the last backward pass with a known number
    # By module and training mode: the samples of its first call with known samples, and of all
    # calls.
    _calls: dict[tuple[int, bool], tuple[int | None, int | None]] = field(default_factory=dict)

    def take(self, module: int, training: bool, samples: int | None) -> None:
        """Count a call. `samples` may be unknown."""
        first = together = samples
        if (module, training) in self._calls:
            first, earlier = self._calls[module, training]
            first = samples if first is None else first
            together = None if samples is None or earlier is None else earlier + samples
        self._calls[module, training] = (first, together)

    def together(self) -> int | None:
        """Return the samples of all calls of the module, or None if unknown."""
        return self._calls[self._which()][1] if self._calls else None

    def end(self) -> int | None:
        """Return the samples of the first call before a backward pass, and reset the calls."""
        if not self._calls:
            return None
        which = self._which()
        known = (self._calls[which], *self._calls.values())
        samples = next((first for first, _ in known if first is not None), None)
        self.usual = which[0]
        self._calls.clear()
        return samples

    def end_for(self, step: Step, *, in_update: bool) -> None:
        """Add the samples of the first call to a step whose backward pass has ended."""
        samples = self.end()
        # A closure is called several times, with the same samples.
        if samples is not None and not (in_update and step.called_samples):
            step.called_samples.append(samples)
            self.samples_trained = samples

    def copy(self) -> ModelCalls:
        """Return an independent copy."""
        return ModelCalls(self.usual, None, dict(self._calls))

    def clear(self) -> None:
        """Discard the calls: they belonged to something else."""
        self._calls.clear()

    def _which(self) -> tuple[int, bool]:
        modules = [module for module, _ in self._calls]
        module = self.usual if self.usual in modules else modules[0]
        assert module is not None
        return (module, (module, True) in self._calls)

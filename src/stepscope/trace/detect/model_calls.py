"""Samples of the module calls before a backward pass.

Without a loader, these are the samples of the step. With one, they distinguish batches that were
used from batches that were skipped. Of several modules, the one counted the last time counts again,
with its first call: a metric, or an evaluation that did not disable gradients, may be called before
it. A call in training mode takes precedence over one in eval mode.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ModelCalls:
    """The calls with gradients since the last backward pass."""

    usual: int | None = None  # the module that counted the last time
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

    def copy(self) -> ModelCalls:
        """Return an independent copy."""
        return ModelCalls(self.usual, dict(self._calls))

    def clear(self) -> None:
        """Discard the calls: they belonged to something else."""
        self._calls.clear()

    def _which(self) -> tuple[int, bool]:
        modules = [module for module, _ in self._calls]
        module = self.usual if self.usual in modules else modules[0]
        assert module is not None
        return (module, (module, True) in self._calls)


@dataclass(slots=True)
class Acting:
    """Calls with one sample that act rather than evaluate.

    In reinforcement learning a network is called with one sample after every update, to choose what
    to learn from next. A single call of this kind may be an evaluation.
    """

    _after: int = -1
    _acts: bool = False

    def is_usual(self, updates: int) -> bool:
        """Count such a call; return whether there was one before the previous update too."""
        if self._after < updates:
            self._acts = self._after == updates - 1
            self._after = updates
        return self._acts

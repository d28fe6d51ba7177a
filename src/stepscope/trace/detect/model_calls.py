"""With how many samples modules were called before a backward pass.

That is how many were trained with where there is no loader, and tells batches that were used from
those that were skipped. The first call counts, of the module that it was the time before: a metric
or a test, which may forget to switch gradients off, can be called before it. Most of those are in
eval mode all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ModelCalls:
    """The calls with gradients since the last backward pass."""

    usual: int | None = None  # the module whose call counted the last time
    # By module, and whether it is in training mode: the samples of its first call that tells, and
    # of all.
    _calls: dict[tuple[int, bool], tuple[int | None, int | None]] = field(default_factory=dict)

    def take(self, module: int, training: bool, samples: int | None) -> None:
        """Count a call. How many samples it had need not be known."""
        first = together = samples
        if (module, training) in self._calls:
            first, earlier = self._calls[module, training]
            first = samples if first is None else first
            together = None if samples is None or earlier is None else earlier + samples
        self._calls[module, training] = (first, together)

    def together(self) -> int | None:
        """Return with how many samples the module was called in all; None where that is unknown."""
        return self._calls[self._which()][1] if self._calls else None

    def end(self) -> int | None:
        """There was a backward pass: return how many samples the first call had, and forget it."""
        if not self._calls:
            return None
        which = self._which()
        known = (self._calls[which], *self._calls.values())
        samples = next((first for first, _ in known if first is not None), None)
        self.usual = which[0]
        self._calls.clear()
        return samples

    def copy(self) -> ModelCalls:
        """Return the same, to go on with apart from it."""
        return ModelCalls(self.usual, dict(self._calls))

    def clear(self) -> None:
        """Forget the calls: they were for something else."""
        self._calls.clear()

    def _which(self) -> tuple[int, bool]:
        modules = [module for module, _ in self._calls]
        module = self.usual if self.usual in modules else modules[0]
        assert module is not None
        return (module, (module, True) in self._calls)

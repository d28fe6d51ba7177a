"""Counts the operations of one step of a user script while it runs.

A dispatch mode sees every call of torch inside the outermost modules and the backward pass, looks
at shapes, and passes it on: results, random numbers and kernels stay the same. The modules and the
backward pass are wrapped for this step only, outside the hooks that time them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.models.multiply_adds import convolves, first_names, multiply_adds_of_operation
from stepscope.models.step_flops import flop_formulas
from stepscope.trace.patches import Patches

if TYPE_CHECKING:
    from stepscope.records.types import StepFlops, StepOperations

COUNTED_BY = "in one step of the script, by torch's formulas: a multiply and an add are two"
NOTHING_CALLED = "the counted step had no backward pass"

_CONVOLUTION_BACKWARD = "aten::convolution_backward"

# The names of `stepscope doctor --peaks`.
_PRECISIONS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
}


@dataclass
class OperationTally:
    """The operations of a part of a step; `contiguous` are those of contiguous convolutions."""

    calls: int = 0
    flop: int = 0
    convolutions: int = 0
    contiguous: int = 0
    by_dtype: Counter[torch.dtype] = field(default_factory=Counter)

    def add(self, other: OperationTally) -> None:
        """Add another part."""
        self.calls += other.calls
        self.flop += other.flop
        self.convolutions += other.convolutions
        self.contiguous += other.contiguous
        self.by_dtype += other.by_dtype


class FlopWindow:
    """Open for one step; then it knows the operations of that step.

    The calls of modules count once a backward pass follows. Of several calls of a module in eval
    mode before it only the last one counts: the others were an evaluation.
    """

    def __init__(self) -> None:
        self.forward, self.backward = OperationTally(), OperationTally()
        self._patches = Patches()
        self._thread = get_ident()
        self._mode = _OperationCount()
        self._inside = False
        self._pending: list[tuple[int, bool, OperationTally]] = []  # module, whether in eval mode

    def open(self) -> None:
        """Count from now on."""
        self._patches.replace(nn.Module, "__call__", self._forward)
        for name in ("backward", "grad"):
            self._patches.replace(torch.autograd, name, self._backward)

    def close(self) -> None:
        """Stop counting."""
        self._patches.undo()

    def _forward(self, original: Any) -> Any:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or get_ident() != self._thread:
                return original(module, *args, **kwargs)
            tally, identity = OperationTally(), id(module)
            self._pending = [each for each in self._pending if each[:2] != (identity, True)]
            self._pending.append((identity, not module.training, tally))
            return self._counted(tally, lambda: original(module, *args, **kwargs))

        return functools.wraps(original)(call)

    def _backward(self, original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._inside or get_ident() != self._thread:
                return original(*args, **kwargs)
            for _, _, tally in self._pending:
                self.forward.add(tally)
            self._pending.clear()
            return self._counted(self.backward, lambda: original(*args, **kwargs))

        return functools.wraps(original)(backward)

    def _counted(self, tally: OperationTally, call: Callable[[], Any]) -> Any:
        self._inside, self._mode.tally = True, tally
        try:
            with self._mode:
                return call()
        finally:
            self._inside = False

    def flops(self, samples: int | None) -> tuple[StepFlops | None, str | None]:
        """Return the floating-point operations of the step, or None and the reason."""
        if self._mode.failure is not None:
            return None, self._mode.failure
        if self._mode.unknown:
            names = first_names(sorted(self._mode.unknown))
            return None, f"the operations of {names} are not known"
        if not self.backward.calls:
            return None, NOTHING_CALLED
        total = self.forward.flop + self.backward.flop
        flops: StepFlops = {
            "forward": self.forward.flop,
            "backward": self.backward.flop,
            "per_sample": total / samples if samples else None,
            "counted": COUNTED_BY,
            "estimated_bytes": None,
        }
        by_dtype = (self.forward.by_dtype + self.backward.by_dtype).most_common(1)
        if by_dtype:
            dtype = by_dtype[0][0]
            flops["precision"] = _PRECISIONS.get(dtype, str(dtype).removeprefix("torch."))
        return flops, None

    def operations(self) -> StepOperations | None:
        """Return how many operations there were, and of what kind; None without any."""
        total = OperationTally()
        total.add(self.forward)
        total.add(self.backward)
        if not total.calls:
            return None
        of_all, of_these = total.flop, total.convolutions
        return {
            "count": total.calls,
            "convolution_share": of_these / of_all if of_all else None,
            "contiguous_share": total.contiguous / of_these if of_these else None,
        }


class _OperationCount(TorchDispatchMode):
    """Add every call of torch to the tally."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tally = OperationTally()
        self.unknown: set[str] = set()
        self.failure: str | None = None
        self._formulas = flop_formulas()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        try:
            self._count(func, args, kwargs or {}, made)
        except Exception as error:  # the script goes on without a count
            self.failure = f"{func} could not be counted: {type(error).__name__}: {error}"
        return made

    def _count(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        tally = self.tally
        tally.calls += not func.is_view
        formula = self._formulas.get(func._overloadpacket)
        if formula is None:
            if multiply_adds_of_operation(func, args, made) is None:
                self.unknown.add(str(func._schema.name))
            return
        flop = formula(*args, **kwargs, out_val=made)
        tally.flop += flop
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if tensors:
            tally.by_dtype[tensors[0].dtype] += flop
        is_backward = func._schema.name == _CONVOLUTION_BACKWARD
        if is_backward or convolves(func):
            tally.convolutions += flop
            tally.contiguous += flop if _is_contiguous(args[1 if is_backward else 0]) else 0


def _is_contiguous(images: torch.Tensor) -> bool:
    """Return whether a convolution's input has channels_last as another possible format."""
    other = {4: torch.channels_last, 5: torch.channels_last_3d}.get(images.dim())
    return other is not None and not images.is_contiguous(memory_format=other)

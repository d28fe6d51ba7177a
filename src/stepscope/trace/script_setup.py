"""How a user script computes: its model, its optimisers, torch's settings and its operations.

The setup is taken once, between two steps, and the operations of one step are counted. Modules and
optimisers are looked at through the weak references that the hooks hold, and none is kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch

from stepscope.meter.clock import now_ns
from stepscope.records import schema
from stepscope.trace import event_buffer as e

if TYPE_CHECKING:
    from torch import nn

    from stepscope.records.types import OptimizerSetup, ScriptSetup, StepFlops
    from stepscope.trace.event_buffer import HookState
    from stepscope.trace.flop_window import FlopWindow

# By then the script has settled.
SETUP_AFTER_STEPS = 2
OPERATIONS_AFTER_STEPS = 20

TOO_EARLY = f"the script ended too early: they are counted after step {OPERATIONS_AFTER_STEPS}"
COMPILED = "the operations of compiled code cannot be counted from outside"


class SetupWatch:
    """Takes the setup of a script, and counts the operations of one of its steps.

    `due_at_steps` is the step from which on `between_steps` is to be called.
    """

    def __init__(self, state: HookState) -> None:
        self.due_at_steps = SETUP_AFTER_STEPS
        self.own_ns = 0
        self._state = state
        self._setup: ScriptSetup | None = None
        self._window: FlopWindow | None = None
        self._absent = TOO_EARLY
        self._compiled_before = _compiled_frames()

    @property
    def is_counting(self) -> bool:
        """Whether the operations of this step are being counted."""
        return self._window is not None and self.due_at_steps < sys.maxsize

    def between_steps(self) -> None:
        """Do what is due. It must not be called in a block without detail."""
        state = self._state
        if state.steps < self.due_at_steps:
            return
        began_ns, counted = now_ns(), self.is_counting
        state.buffer.record(e.OWN)
        try:
            self._advance()
        except Exception as error:  # the script goes on without these facts
            self._absent = f"the count failed: {type(error).__name__}: {error}"
            self.close()
        state.buffer.record(e.OWN_DONE)
        self.own_ns += now_ns() - began_ns
        if self.is_counting != counted:
            detail = schema.FULL if counted else schema.OPERATIONS
            state.buffer.record(e.DETAIL, detail)

    def _advance(self) -> None:
        if self.is_counting:
            self.close()
        elif self._setup is None:
            self.due_at_steps = OPERATIONS_AFTER_STEPS
            self._setup = describe_setup(self._state)
        elif self._setup["compiled"] or _compiled_frames() > self._compiled_before:
            self._absent, self.due_at_steps = COMPILED, sys.maxsize
        else:
            from stepscope.trace.flop_window import FlopWindow

            window = FlopWindow()
            window.open()
            self._window, self.due_at_steps = window, self._state.steps + 1

    def close(self) -> None:
        """Stop counting."""
        if self._window is not None:
            self._window.close()
        self.due_at_steps = sys.maxsize

    def setup(self, evaluation_with_gradients_s: float) -> ScriptSetup | None:
        """Return the setup; None if the script ended before it was taken."""
        if self._setup is None:
            return None
        return {
            **self._setup,
            "operations": self._window.operations() if self._window else None,
            "evaluation_with_gradients_s": evaluation_with_gradients_s,
        }

    def flops(self, samples: int | None) -> tuple[StepFlops | None, str | None]:
        """Return the operations of a step with so many samples, or None and the reason."""
        return (None, self._absent) if self._window is None else self._window.flops(samples)


def describe_setup(state: HookState) -> ScriptSetup:
    """Return how the script computes, by what it has called so far."""
    modules = [module for each in list(state.roots.values()) if (module := each()) is not None]
    weights = {id(weight): weight for module in modules for weight in module.parameters()}
    optimizers = [
        found for each in list(state.optimizers.values()) if (found := each()) is not None
    ]
    updated = {
        id(weight)
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", None) or []
        for weight in group.get("params", ())
    }
    unused = [weight.grad is not None and each not in updated for each, weight in weights.items()]
    unused_values = sum(weight.numel() for weight in compress(weights.values(), unused))
    by_dtype: Counter[str] = Counter()
    for weight in weights.values():
        by_dtype[str(weight.dtype).removeprefix("torch.")] += weight.numel()
    return {
        "threads": torch.get_num_threads(),
        "parameters": by_dtype.total(),
        "parameter_tensors": len(weights),
        "dtype": by_dtype.most_common(1)[0][0] if by_dtype else None,
        "optimizers": [_optimizer(optimizer) for optimizer in optimizers],
        "unused_gradients": sum(unused) if updated & weights.keys() else 0,
        "unused_gradients_share": unused_values / max(1, by_dtype.total()),
        "unused_gradients_first": unused == sorted(unused, reverse=True),
        "operations": None,
        "compiled": any(map(_is_compiled, modules)),
        "anomaly_detection": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "evaluation_with_gradients_s": 0.0,
    }


def _is_compiled(module: nn.Module) -> bool:
    """Return whether a module, or a part of it, was passed to `torch.compile`."""
    return any(
        type(each).__name__ == "OptimizedModule"
        or getattr(each, "_compiled_call_impl", None) is not None
        for each in module.modules()
    )


def _compiled_frames() -> int:
    """Return how many frames torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else sum(dynamo.counters.get("frames", {}).values())


def _optimizer(optimizer: Any) -> OptimizerSetup:
    groups = getattr(optimizer, "param_groups", None) or []
    first = groups[0] if groups else {}
    return {
        "name": type(optimizer).__name__,
        "tensors": sum(len(group.get("params", ())) for group in groups),
        "fused": first.get("fused"),
        "foreach": first.get("foreach"),
    }

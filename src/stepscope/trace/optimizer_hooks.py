"""Hooks that record the steps of optimisers: when one updates, and which updates make one step."""

from __future__ import annotations

import functools
import weakref
from threading import get_ident
from typing import Any

import torch
from torch import nn, optim

from stepscope.meter.clock import now_ns, other_clock_ns
from stepscope.trace import event_buffer as e
from stepscope.trace.event_buffer import HookState
from stepscope.trace.patches import Patches
from stepscope.trace.weight_watch import STEPS_OF_ONE_FETCH

# Optimisers that wrap another one and step it when gradients are complete. Their time is optimiser
# time, but only the inner step is an update.
_PASSES_STEPS_ON = ("accelerate.optimizer",)

# The number of updates by one optimiser before another one can replace it.
_STEPS_BEFORE_ANOTHER = 2


def record_span(state: HookState, begin: int, end: int, original: Any) -> Any:
    """Record the begin and end of a function, unless it is part of a recorded span."""
    buffer, extend = state.buffer, state.buffer.fields.extend
    # Some scripts update each weight and clear its gradient during the backward pass.
    in_backward_too = begin == e.ZERO

    def span(*args: Any, **kwargs: Any) -> Any:
        if state.busy and not (in_backward_too and state.in_backward):
            return original(*args, **kwargs)
        if not state.full or (state.has_threads and state.is_elsewhere()):
            return original(*args, **kwargs)
        extend((begin, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
        try:
            return original(*args, **kwargs)
        finally:
            extend((end, now_ns(), None, None, buffer.queue and buffer.queue.mark()))

    return functools.wraps(original)(span)


def watch_optimizers(state: HookState, patches: Patches) -> None:
    """Record every optimiser's step, outside the wrapper that torch puts around it.

    torch wraps a class's `step` when its first object is created, and marks it `hooked`. The hook
    does the same.
    """
    update = functools.partial(_optimizer_step, state)
    zero = functools.partial(record_span, state, e.ZERO, e.ZEROED)

    def watch(cls: Any) -> None:
        step = vars(cls).get("step")
        if step is None or getattr(step, "stepscope", None):
            return
        if getattr(step, "hooked", False):
            patches.replace(cls, "step", update)
        elif cls.__module__ in _PASSES_STEPS_ON:
            patches.replace(cls, "step", zero)
            cls.step.stepscope = "span"

    def watch_all(parent: Any) -> None:
        for cls in parent.__subclasses__():
            watch(cls)
            watch_all(cls)

    def hooked(original: Any) -> Any:
        def patch_step_function(optimizer: Any) -> None:
            cls = type(optimizer)
            original(optimizer)
            if getattr(cls.step, "stepscope", None) != "update":
                patches.replace(cls, "step", update)
            if get_ident() == state.thread:
                if state.weights is not None:
                    state.weights.stop()
                state.updated_by = ()
                state.optimizers[id(optimizer)] = weakref.ref(optimizer)
                state.beside.discard(id(optimizer))  # another one, at the same address
                state.buffer.record(e.MADE, id(optimizer))

        return patch_step_function

    def defined(original: Any) -> Any:
        def init_subclass(cls: Any, /, **kwargs: Any) -> None:
            super(optim.Optimizer, cls).__init_subclass__(**kwargs)
            watch(cls)

        return classmethod(init_subclass)

    patches.replace(optim.Optimizer, "zero_grad", zero)
    patches.replace(nn.Module, "zero_grad", zero)
    patches.replace(torch.amp.GradScaler, "unscale_", zero)
    patches.replace(torch.amp.GradScaler, "update", zero)
    patches.replace(torch.amp.GradScaler, "step", functools.partial(_scaler_step, state))
    watch_all(optim.Optimizer)
    patches.replace(optim.Optimizer, "_patch_step_function", hooked)
    patches.replace(optim.Optimizer, "__init_subclass__", defined)


def _scaler_step(state: HookState, original: Any) -> Any:
    """Record a scaler's step as an update, also if it skips invalid gradients."""

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        update = update_hook(state, lambda _: original(scaler, optimizer, *args, **kwargs))
        return update(optimizer)

    return functools.wraps(original)(step)


def _optimizer_step(state: HookState, original: Any) -> Any:
    step = functools.wraps(original)(update_hook(state, original))
    step.stepscope = "update"  # type: ignore[attr-defined]
    return step


def _takes_over(state: HookState, optimizer: Any) -> bool:
    """Return whether an optimiser replaces others instead of stepping beside them.

    This is so without a loader if others have updated all of its weights several times, and this
    optimiser never stepped beside them: first Adam, then LBFGS.
    """
    is_inside = state.in_step > 0  # in an optimiser that wraps this one
    is_early = state.steps - state.steps_at_fetch < _STEPS_BEFORE_ANOTHER
    if is_inside or is_early or id(optimizer) in state.beside:
        return False
    known = (state.optimizers.get(identity) for identity in state.updated_by)
    before = [each for reference in known if reference and (each := reference()) is not None]
    trained = set().union(*map(_weights, before))
    weights = _weights(optimizer)
    if not weights or not weights <= trained:
        state.beside.add(id(optimizer))
        return False
    return True


def _weights(optimizer: Any) -> set[int]:
    """Return the ids of an optimiser's weights; empty if it stores them in another way."""
    try:
        return {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    except Exception:  # the script's own code
        return set()


def update_hook(state: HookState, original: Any) -> Any:
    """Record an update: the step of an optimiser, or of what holds one."""
    buffer, extend, begin, end = state.buffer, state.buffer.fields.extend, e.STEP, e.STEPPED

    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if state.has_threads and state.is_elsewhere():
            return original(optimizer, *args, **kwargs)
        if state.captured is not None:
            state.captured.append(weakref.ref(optimizer))
            return original(optimizer, *args, **kwargs)
        if state.calling is not None and not state.in_backward:  # a module with a loop
            state.loops.add(state.calling)
            state.busy, state.calling = False, None
            if state.full:
                buffer.record(e.CALLED, True)
        identity = id(optimizer)
        if state.updated_by and identity not in state.updated_by and _takes_over(state, optimizer):
            state.updated_by = ()
            buffer.record(e.MADE, identity)
        state.in_step += 1
        state.awaits_backward = False
        extend((begin, now_ns(), identity, None, buffer.queue and buffer.queue.mark()))
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            state.in_step -= 1
            is_outermost, before = not state.in_step, state.updated_by
            is_first = not before or identity in before
            has_no_loader = state.steps - state.steps_at_fetch > STEPS_OF_ONE_FETCH
            if has_no_loader and is_first and is_outermost:
                state.at_boundary()
            mark = buffer.queue and buffer.queue.mark()
            extend((end, now_ns(), identity, other_clock_ns(), mark))
            if is_outermost:  # not in an optimiser that wraps this one
                if is_first:
                    state.steps += 1
                    state.updated_by = (identity,)
                else:
                    state.beside.add(identity)
                    state.updated_by = (*before, identity)
                if state.at_step_end is not None:
                    state.at_step_end()

    return update

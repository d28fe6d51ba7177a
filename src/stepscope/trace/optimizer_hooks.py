"""Hooks on optimisers and gradient scalers that record updates.

They are part of the hooks that `trace.torch_hooks.install` installs.
"""

from __future__ import annotations

import functools
import weakref
from threading import get_ident
from typing import Any

import torch
from torch import nn, optim

from stepscope.meter.clock import now_ns, other_clock_ns
from stepscope.trace.detect import events as e
from stepscope.trace.event_buffer import EventBuffer, Patches, record_span

# Optimisers that wrap another one and step it when gradients are complete. Their time is optimiser
# time, but only the inner step is an update.
_PASSES_STEPS_ON = ("accelerate.optimizer",)

# After more steps than this without a fetch, the loop has no loader.
_STEPS_OF_ONE_FETCH = 8

# The number of updates by one optimiser before another one can replace it.
_STEPS_BEFORE_ANOTHER = 2


def watch_optimizers(buffer: EventBuffer, patches: Patches) -> None:
    """Record every optimiser's step, outside the wrapper that torch puts around it.

    torch wraps a class's `step` when its first object is created, and marks it `hooked`. The hook
    does the same.
    """

    def watch(cls: Any) -> None:
        step = vars(cls).get("step")
        if step is None or getattr(step, "stepscope", None):
            return
        if getattr(step, "hooked", False):
            patches.replace(cls, "step", functools.partial(_optimizer_step, buffer))
        elif cls.__module__ in _PASSES_STEPS_ON:
            patches.replace(cls, "step", functools.partial(record_span, buffer, e.ZERO, e.ZEROED))
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
                patches.replace(cls, "step", functools.partial(_optimizer_step, buffer))
            if get_ident() == buffer.thread:
                buffer.updated_by = ()
                buffer.optimizers[id(optimizer)] = weakref.ref(optimizer)
                buffer.beside.discard(id(optimizer))  # another one, at the same address
                buffer.note(e.MADE, id(optimizer))

        return patch_step_function

    def defined(original: Any) -> Any:
        def init_subclass(cls: Any, /, **kwargs: Any) -> None:
            super(optim.Optimizer, cls).__init_subclass__(**kwargs)
            watch(cls)

        return classmethod(init_subclass)

    zero = functools.partial(record_span, buffer, e.ZERO, e.ZEROED)
    patches.replace(optim.Optimizer, "zero_grad", zero)
    patches.replace(nn.Module, "zero_grad", zero)
    patches.replace(torch.amp.GradScaler, "unscale_", zero)
    patches.replace(torch.amp.GradScaler, "update", zero)
    patches.replace(torch.amp.GradScaler, "step", functools.partial(_scaler_step, buffer))
    watch_all(optim.Optimizer)
    patches.replace(optim.Optimizer, "_patch_step_function", hooked)
    patches.replace(optim.Optimizer, "__init_subclass__", defined)


def _scaler_step(buffer: EventBuffer, original: Any) -> Any:
    """Record a scaler's step as an update, also if it skips invalid gradients."""

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        update = _update(buffer, lambda _: original(scaler, optimizer, *args, **kwargs))
        return update(optimizer)

    return functools.wraps(original)(step)


def _optimizer_step(buffer: EventBuffer, original: Any) -> Any:
    step = functools.wraps(original)(_update(buffer, original))
    step.stepscope = "update"  # type: ignore[attr-defined]
    return step


def _takes_over(buffer: EventBuffer, optimizer: Any) -> bool:
    """Return whether an optimiser replaces others instead of stepping beside them.

    This is so without a loader if others have updated all of its weights several times, and this
    optimiser never stepped beside them: first Adam, then LBFGS.
    """
    is_inside = buffer.in_step > 0  # in an optimiser that wraps this one
    if (
        is_inside
        or buffer.steps_since_fetch < _STEPS_BEFORE_ANOTHER
        or id(optimizer) in buffer.beside
    ):
        return False
    known = (buffer.optimizers.get(identity) for identity in buffer.updated_by)
    before = [each for reference in known if reference and (each := reference()) is not None]
    trained = set().union(*map(_weights, before))
    weights = _weights(optimizer)
    if not weights or not weights <= trained:
        buffer.beside.add(id(optimizer))
        return False
    return True


def _weights(optimizer: Any) -> set[int]:
    """Return the ids of an optimiser's weights; empty if it stores them in another way."""
    try:
        return {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    except (AttributeError, KeyError, TypeError):
        return set()


def _update(buffer: EventBuffer, original: Any) -> Any:
    note, begin, end = buffer.notes.extend, e.STEP, e.STEPPED

    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if buffer.has_threads and get_ident() != buffer.thread:
            return original(optimizer, *args, **kwargs)
        if buffer.calling is not None and not buffer.in_backward:  # a module with a loop
            buffer.loops.add(buffer.calling)
            buffer.busy, buffer.calling = False, None
            if buffer.full:
                buffer.note(e.CALLED, True)
        identity = id(optimizer)
        if (
            buffer.updated_by
            and identity not in buffer.updated_by
            and _takes_over(buffer, optimizer)
        ):
            buffer.updated_by = ()
            buffer.note(e.MADE, identity)
        buffer.in_step += 1
        buffer.awaits_backward = False
        note((begin, now_ns(), identity, None, buffer.queue and buffer.queue.mark()))
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            buffer.in_step -= 1
            if buffer.in_step:  # in an optimiser that wraps this one
                note(
                    (
                        end,
                        now_ns(),
                        identity,
                        other_clock_ns(),
                        buffer.queue and buffer.queue.mark(),
                    )
                )
            else:
                before = buffer.updated_by
                is_first = not before or identity in before
                if is_first and buffer.steps - buffer.steps_at_fetch > _STEPS_OF_ONE_FETCH:
                    buffer.at_boundary()
                note(
                    (
                        end,
                        now_ns(),
                        identity,
                        other_clock_ns(),
                        buffer.queue and buffer.queue.mark(),
                    )
                )
                if is_first:
                    buffer.steps += 1
                    buffer.updated_by = (identity,)
                else:
                    buffer.beside.add(identity)
                    buffer.updated_by = (*before, identity)
                if buffer.at_step_end is not None:
                    buffer.at_step_end()

    return update

"""Hooks on torch that record what a user's script does, without changing it.

The hooks run inside the script's training loop. They only record events (`trace.event_buffer`);
`trace.tracer` decides when these are flushed. `install` returns the patches that remove all hooks.

Only the thread that installs the hooks is traced. Inside a call, a fetch or a move, inner calls are
part of it and not recorded (`busy`), so the hook costs a submodule one comparison.

Between two hook calls a step touches more memory than the caches hold. Every function and object
that a hook uses therefore costs time, and system calls most of all: reading the process's CPU time
takes 0.4 us in a tight loop and 5 us here. Hooks on the path of every step append their events
directly; the others call `EventBuffer.record`, which defines the fields of an event.
"""

from __future__ import annotations

import functools
import threading
import weakref
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled, nn, optim
from torch.compiler import is_compiling, is_dynamo_compiling

from stepscope.meter.clock import now_ns, other_clock_ns
from stepscope.meter.device_timeline import queue_of
from stepscope.trace import event_buffer as e
from stepscope.trace.allreduce_hooks import watch_allreduce
from stepscope.trace.dataloader_hooks import watch_loaders
from stepscope.trace.detect.spans import value_of
from stepscope.trace.event_buffer import HookState
from stepscope.trace.patches import Patches
from stepscope.trace.sample_count import samples_of_call
from stepscope.trace.transfer_hooks import watch_transfers
from stepscope.trace.weight_watch import STEPS_OF_ONE_FETCH, WeightWatch, unwrapped

# Most calls have these fields; they share one object.
_PLAIN_CALL = (True, True, None)  # the garbage collector skips plain tuples

# Python's thread that sends batch indices to workers. It never calls torch.
_CARRIES_DATA_ONLY = "QueueFeederThread"

# Optimisers that wrap another one and step it when gradients are complete. Their time is optimiser
# time, but only the inner step is an update.
_PASSES_STEPS_ON = ("accelerate.optimizer",)

# The number of updates by one optimiser before another one can replace it.
_STEPS_BEFORE_ANOTHER = 2


def install(state: HookState) -> Patches:
    """Install the hooks on torch. Call `undo` on the result to remove them."""
    patches = Patches()
    state.has_threads = threading.active_count() > 1
    patches.replace(threading.Thread, "start", functools.partial(_start_thread, state))
    patches.replace(nn.Module, "__call__", functools.partial(_call, state))
    watch_loaders(state, patches)
    watch_allreduce(state, patches)
    watch_transfers(state, patches)
    patches.replace(torch.Tensor, "cuda", functools.partial(_record_span, state, e.MOVE, e.MOVED))
    patches.replace(torch.autograd, "backward", functools.partial(_backward, state))
    patches.replace(torch.amp.GradScaler, "scale", functools.partial(_scale, state))
    patches.replace(torch.serialization, "save", functools.partial(_save, state))
    patches.replace(torch, "save", lambda original: torch.serialization.save)
    _watch_optimizers(state, patches)
    state.weights = WeightWatch(state, patches, functools.partial(_backward, state))
    return patches


def _start_thread(state: HookState, original: Any) -> Any:
    """Record that threads other than the traced one may call hooks."""

    def start(thread: threading.Thread) -> None:
        if getattr(thread, "_name", None) != _CARRIES_DATA_ONLY:  # it may not be initialised
            state.has_threads = True
        original(thread)

    return functools.wraps(original)(start)


def _record_span(state: HookState, begin: int, end: int, original: Any) -> Any:
    """Record the begin and end of a function, unless it is part of a recorded span."""
    buffer, extend = state.buffer, state.buffer.fields.extend
    # Some scripts update each weight and clear its gradient during the backward pass.
    in_backward_too = begin == e.ZERO

    def span(*args: Any, **kwargs: Any) -> Any:
        if state.busy and not (in_backward_too and state.in_backward):
            return original(*args, **kwargs)
        if not state.full or (state.has_threads and get_ident() != state.thread):
            return original(*args, **kwargs)
        extend((begin, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
        try:
            return original(*args, **kwargs)
        finally:
            extend((end, now_ns(), None, None, buffer.queue and buffer.queue.mark()))

    return functools.wraps(original)(span)


# modules


def _call(state: HookState, original: Any) -> Any:
    """Record the outermost module's call. Inner calls are passed through at once.

    So are calls of modules without weights after it, until the backward pass: a loss, an
    activation. They are part of the open forward pass, whether or not they are modules. But where
    the samples of the first call are unknown, the loss may provide them.
    """
    buffer, extend = state.buffer, state.buffer.fields.extend
    passes_on, begin, end = _only_passes_on(original), e.CALL, e.CALLED

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if state.busy:
            if passes_on and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return original(module, *args, **kwargs)
        if is_dynamo_compiling() or (state.has_threads and get_ident() != state.thread):
            return original(module, *args, **kwargs)
        grad, identity = is_grad_enabled(), id(module)
        if grad and identity not in state.roots:
            _register_root(state, module)
        if not (grad and state.counted):
            if is_compiling():  # an export; a slower check
                return original(module, *args, **kwargs)
            if state.weights is not None:
                state.weights.look()
        if identity in state.loops or (state.awaits_backward and identity in state.weightless):
            return original(module, *args, **kwargs)
        state.busy, state.calling = True, identity
        if grad and not state.full:
            # Inner compiled code was compiled with `busy` set.
            try:
                return original(module, *args, **kwargs)
            finally:
                if state.calling == identity:
                    state.busy, state.calling = False, None
        samples, samples_known = None, state.counted
        state.called = True
        if samples_known:
            state.counted = False
        else:
            samples = samples_of_call(args, kwargs)
            samples_known = samples is not None
        is_plain = grad and samples is None and module.training
        how = _PLAIN_CALL if is_plain else (grad, module.training, samples)
        extend((begin, now_ns(), identity, how, buffer.queue and buffer.queue.mark()))
        try:
            if passes_on and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return original(module, *args, **kwargs)
        finally:
            if state.calling == identity:
                state.busy, state.calling = False, None
                state.awaits_backward = state.awaits_backward or (grad and samples_known)
                extend((end, now_ns(), grad, None, buffer.queue and buffer.queue.mark()))

    _never_compile(call)
    return call


def _never_compile(function: Any) -> None:
    """Let torch.compile step over a hook, as over torch's own `__call__`, to what it calls.

    After a graph break inner modules are called from Python. Compiled as code of its own, the hook
    would be compiled again for each class of module, and then no more.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # torch 2.5 and before
        return
    skips = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    set_code_exec_strategy(function.__code__, skips)


def _only_passes_on(call: Any) -> bool:
    """Return whether this is torch's `Module.__call__` in the known form.

    That form only checks whether the module is compiled. The hook can check this itself, so a call
    has as many Python frames as without the hook.
    """
    names = getattr(getattr(call, "__code__", None), "co_names", ())
    return call is getattr(nn.Module, "_wrapped_call_impl", None) and names == (
        "_compiled_call_impl",
        "_call_impl",
    )


def _register_root(state: HookState, module: nn.Module) -> None:
    """Register an outermost module and find the device that it uses."""
    identity = id(module)

    def died(reference: Any) -> None:  # another module may reuse its address
        state.roots.pop(identity, None)
        state.weightless.discard(identity)

    state.roots[identity] = weakref.ref(module, died)
    parameter = next(iter(module.parameters()), None)  # some return a list
    if parameter is None:
        state.weightless.add(identity)
    if parameter is not None and state.device is None:
        state.device = str(parameter.device)
        state.buffer.queue = queue_of(parameter.device)
    if parameter is not None and not parameter.is_cpu:
        if state.idle_moves_left == 0:
            state.watch_moves()
        state.idle_moves_left = None


# backward passes


def _backward(state: HookState, original: Any) -> Any:
    buffer, extend = state.buffer, state.buffer.fields.extend
    begin, end = e.BACKWARD, e.BACKWARD_DONE
    allreduce, prepared, plain = state.allreduce, state.allreduce.prepared, torch.Tensor
    has_one_value = True

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal has_one_value
        if (
            state.in_backward
            or not state.full
            or (state.has_threads and get_ident() != state.thread)
        ):
            return original(tensors, *args, **kwargs)
        extend((begin, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
        # On the CPU the loss is read at once: before the backward pass, while the caches hold the
        # forward pass's data, that is as fast as keeping it until the next flush.
        if has_one_value and type(tensors) is plain and tensors.is_cpu and state.scaled is None:
            try:
                loss = tensors.item()
                loss = None if type(loss) is complex else loss
            except RuntimeError:  # several values, or none while tracing: check from now on
                loss, has_one_value = None, False
        else:
            loss = _loss(state, tensors)
        # Recomputed activations call modules: these belong to the backward pass.
        was_busy, state.busy, state.in_backward = state.busy, True, True
        state.awaits_backward = False
        try:
            return original(tensors, *args, **kwargs)
        finally:
            state.busy, state.in_backward = was_busy, False
            ended_ns = now_ns()
            extend((end, ended_ns, None, loss, buffer.queue and buffer.queue.mark()))
            if prepared:
                allreduce.backward_done(ended_ns)

    return functools.wraps(original)(backward)


def _loss(state: HookState, tensors: Any) -> Any:
    """Return the loss or a function that reads it later; None if `backward` had no scalar.

    Several losses of one call are added up, as their gradients are. On a device the loss is copied
    before the next mark: when that is reached, the loss is available.
    """
    # Do not consume an iterator: the backward pass needs its items.
    if isinstance(tensors, list | tuple):
        losses = [_loss(state, tensor) for tensor in tensors]
        if not losses or None in losses:
            return None
        return losses[0] if len(losses) == 1 else lambda: sum(map(value_of, losses))
    root = unwrapped(tensors) if isinstance(tensors, torch.Tensor) else None
    if root is None or root.numel() != 1 or root.is_complex():
        return None
    if state.scaled is not None:
        identity, unscaled = state.scaled
        root = unscaled if identity == id(root) else root
        state.scaled = None
    try:
        if type(root) is torch.Tensor and root.is_cpu:
            return root.item()
    except RuntimeError:  # the backward pass is being traced: there are no values
        return None
    loss = root.detach()  # without its graph, which may be large
    queue = state.buffer.queue
    return loss.item if queue is None else queue.fetch(loss.reshape(1))


def _scale(state: HookState, original: Any) -> Any:
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            state.scaled = (id(scaled), outputs.detach())
        return scaled

    return functools.wraps(original)(scale)


def _save(state: HookState, original: Any) -> Any:
    """Record the time of a checkpoint."""

    def save(*args: Any, **kwargs: Any) -> Any:
        begin_ns = now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            if get_ident() == state.thread:
                state.saves.append((begin_ns, now_ns()))

    return functools.wraps(original)(save)


# updates


def _watch_optimizers(state: HookState, patches: Patches) -> None:
    """Record every optimiser's step, outside the wrapper that torch puts around it.

    torch wraps a class's `step` when its first object is created, and marks it `hooked`. The hook
    does the same.
    """
    update = functools.partial(_optimizer_step, state)
    zero = functools.partial(_record_span, state, e.ZERO, e.ZEROED)

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
        update = _update(state, lambda _: original(scaler, optimizer, *args, **kwargs))
        return update(optimizer)

    return functools.wraps(original)(step)


def _optimizer_step(state: HookState, original: Any) -> Any:
    step = functools.wraps(original)(_update(state, original))
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
    except (AttributeError, KeyError, TypeError):
        return set()


def _update(state: HookState, original: Any) -> Any:
    buffer, extend, begin, end = state.buffer, state.buffer.fields.extend, e.STEP, e.STEPPED

    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if state.has_threads and get_ident() != state.thread:
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

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
from torch import is_grad_enabled, nn
from torch.compiler import is_compiling, is_dynamo_compiling

from stepscope.meter.clock import now_ns
from stepscope.meter.device_timeline import queue_of
from stepscope.trace import event_buffer as e
from stepscope.trace.allreduce_hooks import watch_allreduce
from stepscope.trace.cuda_graph_hooks import watch_graphs
from stepscope.trace.dataloader_hooks import watch_loaders
from stepscope.trace.detect.spans import read_losses
from stepscope.trace.event_buffer import HookState
from stepscope.trace.optimizer_hooks import record_span, watch_optimizers
from stepscope.trace.patches import Patches
from stepscope.trace.sample_count import samples_of_call
from stepscope.trace.weight_watch import WeightWatch, unwrapped

# Most calls have these fields; they share one object.
_PLAIN_CALL = (True, True, None)  # the garbage collector skips plain tuples

LOSS = "loss"  # what is not read any more after an error

# Python's thread that sends batch indices to workers. It never calls torch.
_CARRIES_DATA_ONLY = "QueueFeederThread"


def install(state: HookState) -> Patches:
    """Install the hooks on torch. Call `undo` on the result to remove them."""
    patches = Patches()
    state.has_threads = threading.active_count() > 1
    patches.replace(threading.Thread, "start", functools.partial(_start_thread, state))
    patches.replace(nn.Module, "__call__", functools.partial(_call, state))
    watch_loaders(state, patches)
    watch_allreduce(state, patches)
    _watch_moves(state, patches)
    patches.replace(nn.Module, "_apply", functools.partial(_apply, state))
    state.at_cuda = functools.partial(_at_cuda, state, patches)
    patches.replace(torch.autograd, "backward", functools.partial(_backward, state))
    patches.replace(torch.amp.GradScaler, "scale", functools.partial(_scale, state))
    patches.replace(torch.serialization, "save", functools.partial(_save, state))
    patches.replace(torch, "save", lambda original: torch.serialization.save)
    watch_optimizers(state, patches)
    state.weights = WeightWatch(state, patches, functools.partial(_backward, state))
    return patches


def _start_thread(state: HookState, original: Any) -> Any:
    """Record that threads other than the traced one may call hooks."""

    def start(thread: threading.Thread) -> None:
        if getattr(thread, "_name", None) != _CARRIES_DATA_ONLY:  # it may not be initialised
            state.has_threads = True
        original(thread)

    return functools.wraps(original)(start)


# moves


def _watch_moves(state: HookState, patches: Patches) -> None:
    """Record when a batch goes to the device: a move of a CPU tensor, unless it stays as it is.

    A script that trains on the CPU still requests moves, twice a step. After many moves without
    effect during training, and none with one, the hook is removed; it is installed again once a
    device is found.
    """
    to = functools.partial(_to, state, patches)
    state.watch_moves = lambda: patches.replace(torch.Tensor, "to", to)
    if state.idle_moves_left != 0:
        state.watch_moves()
    patches.replace(torch.Tensor, "cuda", functools.partial(record_span, state, e.MOVE, e.MOVED))


def _to(state: HookState, patches: Patches, original: Any) -> Any:
    device_kinds = (torch.device, str, int)
    buffer, extend, begin, end = state.buffer, state.buffer.fields.extend, e.MOVE, e.MOVED

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if state.busy or not state.full:
            return original(tensor, *args, **kwargs)
        device = args[0] if args else kwargs.get("device")
        if (
            not tensor.is_cpu
            or not isinstance(device, device_kinds)
            or is_compiling()
            or (state.has_threads and get_ident() != state.thread)
        ):
            return original(tensor, *args, **kwargs)
        state.busy = True
        begin_ns, mark = now_ns(), buffer.queue and buffer.queue.mark()
        moved = None
        try:
            moved = original(tensor, *args, **kwargs)
        finally:
            state.busy = False
            if moved is not tensor:
                state.idle_moves_left = None
                extend((begin, begin_ns, None, None, mark))
                extend((end, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
            elif state.idle_moves_left and state.steps:  # no moves of weights
                state.idle_moves_left -= 1
                if not state.idle_moves_left:
                    patches.restore_one(torch.Tensor, "to")
        return moved

    return to


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
    try:
        devices = list(dict.fromkeys(parameter.device for parameter in module.parameters()))
    except Exception as error:  # `parameters` may be the script's
        state.fail("device", error)
        devices = []
    if devices:
        state.weightless.discard(identity)
    else:
        state.weightless.add(identity)
    others = [device for device in devices if device.type != "cpu"]
    _take_device(state, (others or devices)[:1], is_other=bool(others))
    state.devices.update(str(device) for device in others if device.type != "meta")
    if isinstance(module, nn.DataParallel):
        state.devices.update(f"{others[0].type}:{index}" for index in module.device_ids if others)
    if others:
        if state.idle_moves_left == 0:
            state.watch_moves()
        state.idle_moves_left = None


def _take_device(state: HookState, found: list[torch.device], *, is_other: bool) -> None:
    """Take the device of a module for that of the training.

    The first one is, but a module may have tried its shapes on a CPU before it was moved.
    """
    may_change = is_other and (state.device == "cpu" or state.device_is_stale)
    for device in found:
        if (state.device is None or may_change) and str(device) != state.device:
            if state.buffer.queue is not None:  # two events without a mark: another timeline begins
                for kind in (e.OWN, e.OWN_DONE):
                    state.buffer.fields.extend((kind, now_ns(), None, None, None))
            state.device = str(device)
            state.buffer.queue = queue_of(device)
            if state.buffer.queue is not None:
                state.at_cuda()
    state.device_is_stale = False


def _at_cuda(state: HookState, patches: Patches) -> None:
    """Install what only a script on CUDA needs."""
    state.at_cuda = lambda: None
    watch_graphs(state, patches)


def _apply(state: HookState, original: Any) -> Any:
    """Look at modules again after weights were moved or replaced."""

    def apply(module: Any, *args: Any, **kwargs: Any) -> Any:
        if state.roots:
            state.device_is_stale = state.device_is_stale or id(module) in state.roots
            state.roots.clear()
        return original(module, *args, **kwargs)

    return functools.wraps(original)(apply)


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
            loss = _loss_of(state, tensors)
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


def _loss_of(state: HookState, tensors: Any) -> Any:
    """Return what `_loss` does; None from its first error on."""
    if LOSS in state.failed:
        return None
    try:
        return _loss(state, tensors)
    except Exception as error:
        state.fail(LOSS, error)
        return None


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
        return losses[0] if len(losses) == 1 else functools.partial(read_losses, losses)
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
    kind, queue = root.device.type, state.buffer.queue
    if type(root).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(f"reading a {type(root).__name__} may communicate")
    if kind == "cuda":
        return None if queue is None else queue.fetch(root)
    if kind not in ("cpu", "mps"):
        raise TypeError(f"reading a value of the device {kind} may wait for it or compile")
    loss = root.detach()  # without its graph, which may be large
    return functools.partial(_read_later, state, loss)


def _read_later(state: HookState, loss: torch.Tensor) -> float | None:
    try:
        return float(loss.item())
    except Exception as error:
        state.fail(LOSS, error)
        return None


def _scale(state: HookState, original: Any) -> Any:
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            try:
                state.scaled = (id(scaled), outputs.detach())
            except Exception as error:
                state.fail(LOSS, error)
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

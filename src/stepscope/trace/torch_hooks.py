"""Hooks on torch that record what a user's script does, without changing it.

The hooks run inside the script's training loop. They only append events (`trace.detect.events`);
`trace.tracer` decides when these are processed. `install` returns the patches that remove all
hooks.

Only the thread that installs the hooks is traced. Inside a call, a fetch or a move, inner calls are
part of it and not recorded (`busy`), so the hook costs a submodule one comparison.

Between two hook calls a step touches more memory than the caches hold. Every function and object
that a hook uses therefore costs time, and system calls most of all: reading the process's CPU time
takes 0.4 us in a tight loop and 5 us here. Hooks on the path of every step append their events
directly; the others call `EventBuffer.note`, which defines the fields of an event.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled, nn
from torch.compiler import is_compiling, is_dynamo_compiling

from stepscope.meter.clock import now_ns
from stepscope.meter.device_timeline import queue_of
from stepscope.trace.allreduce_hooks import watch_allreduce
from stepscope.trace.dataloader_hooks import watch_loaders
from stepscope.trace.detect import events as e
from stepscope.trace.detect.spans import value_of
from stepscope.trace.event_buffer import EventBuffer, Patches, record_span
from stepscope.trace.optimizer_hooks import watch_optimizers
from stepscope.trace.sample_count import samples_of_arguments

# Most calls have these fields; they share one object.
_PLAIN_CALL = (True, True, None)  # the garbage collector skips plain tuples

# Python's thread that sends batch indices to workers. It never calls torch.
_CARRIES_DATA_ONLY = "QueueFeederThread"


def install(buffer: EventBuffer, patches: Patches | None = None) -> Patches:
    """Install the hooks on torch. Call `undo` on the result to remove them."""
    patches = patches or Patches()
    buffer.has_threads = threading.active_count() > 1
    patches.replace(threading.Thread, "start", functools.partial(_start_thread, buffer))
    patches.replace(nn.Module, "__call__", functools.partial(_call, buffer))
    watch_loaders(buffer, patches)
    watch_allreduce(buffer, patches)
    buffer.watch_moves = lambda: patches.replace(
        torch.Tensor, "to", functools.partial(_to, buffer, patches)
    )
    if buffer.idle_moves_left != 0:
        buffer.watch_moves()
    patches.replace(torch.Tensor, "cuda", functools.partial(record_span, buffer, e.MOVE, e.MOVED))
    patches.replace(torch.autograd, "backward", functools.partial(_backward, buffer))
    patches.replace(torch.amp.GradScaler, "scale", functools.partial(_scale, buffer))
    watch_optimizers(buffer, patches)
    return patches


def _start_thread(buffer: EventBuffer, original: Any) -> Any:
    """Record that threads other than the traced one may call hooks."""

    def start(thread: threading.Thread) -> None:
        if getattr(thread, "_name", None) != _CARRIES_DATA_ONLY:  # it may not be initialised
            buffer.has_threads = True
        original(thread)

    return functools.wraps(original)(start)


# modules


def _call(buffer: EventBuffer, original: Any) -> Any:
    """Record the outermost module's call. Inner calls are passed through at once.

    So are calls of modules without weights after it, until the backward pass: a loss, an
    activation. They are part of the open forward pass, whether or not they are modules. But where
    the samples of the first call are unknown, the loss may provide them.
    """
    note, passes_on = buffer.notes.extend, _only_passes_on(original)
    begin, end = e.CALL, e.CALLED

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if buffer.busy:
            if passes_on and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return original(module, *args, **kwargs)
        if is_dynamo_compiling() or (buffer.has_threads and get_ident() != buffer.thread):
            return original(module, *args, **kwargs)
        grad, identity = is_grad_enabled(), id(module)
        if grad and identity not in buffer.roots:
            _register_root(buffer, module)
        if not (grad and buffer.counted) and is_compiling():  # an export; a slower check
            return original(module, *args, **kwargs)
        if identity in buffer.loops or (buffer.awaits_backward and identity in buffer.weightless):
            return original(module, *args, **kwargs)
        buffer.busy, buffer.calling = True, identity
        if grad and not buffer.full:
            # Inner compiled code was compiled with `busy` set.
            try:
                return original(module, *args, **kwargs)
            finally:
                if buffer.calling == identity:
                    buffer.busy, buffer.calling = False, None
        samples, samples_known = None, buffer.counted
        buffer.called = True
        if samples_known:
            buffer.counted = False
        else:
            samples = _samples_of_call(args, kwargs)
            samples_known = samples is not None
        is_plain = grad and samples is None and module.training
        how = _PLAIN_CALL if is_plain else (grad, module.training, samples)
        note((begin, now_ns(), identity, how, buffer.queue and buffer.queue.mark()))
        try:
            if passes_on and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return original(module, *args, **kwargs)
        finally:
            if buffer.calling == identity:
                buffer.busy, buffer.calling = False, None
                buffer.awaits_backward = buffer.awaits_backward or (grad and samples_known)
                note((end, now_ns(), grad, None, buffer.queue and buffer.queue.mark()))

    return call


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


def _register_root(buffer: EventBuffer, module: nn.Module) -> None:
    """Register an outermost module and find the device that it uses."""
    identity = id(module)

    def died(reference: Any) -> None:  # another module may reuse its address
        buffer.roots.pop(identity, None)
        buffer.weightless.discard(identity)

    buffer.roots[identity] = weakref.ref(module, died)
    parameter = next(iter(module.parameters()), None)  # some return a list
    if parameter is None:
        buffer.weightless.add(identity)
    if parameter is not None and buffer.device is None:
        buffer.device = str(parameter.device)
        buffer.queue = queue_of(parameter.device)
    if parameter is not None and not parameter.is_cpu:
        if buffer.idle_moves_left == 0:
            buffer.watch_moves()
        buffer.idle_moves_left = None


def _samples_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    if torch._C._is_tracing():  # reading a length would become part of the graph
        return None
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor) and value.dim():
            return value.size(0) if type(value) is torch.Tensor else len(value)
    return samples_of_arguments((*args, *kwargs.values()))


# moves


def _to(buffer: EventBuffer, patches: Patches, original: Any) -> Any:
    """Record a move of a CPU tensor, unless it stays as it is.

    A script that trains on the CPU still requests moves, twice a step. After many moves without
    effect during training, and none with one, this hook is removed.
    """
    device_kinds = (torch.device, str, int)
    note, begin, end = buffer.notes.extend, e.MOVE, e.MOVED

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if buffer.busy or not buffer.full:
            return original(tensor, *args, **kwargs)
        device = args[0] if args else kwargs.get("device")
        if (
            not tensor.is_cpu
            or not isinstance(device, device_kinds)
            or is_compiling()
            or (buffer.has_threads and get_ident() != buffer.thread)
        ):
            return original(tensor, *args, **kwargs)
        buffer.busy = True
        begin_ns, mark = now_ns(), buffer.queue and buffer.queue.mark()
        moved = None
        try:
            moved = original(tensor, *args, **kwargs)
        finally:
            buffer.busy = False
            if moved is not tensor:
                buffer.idle_moves_left = None
                note((begin, begin_ns, None, None, mark))
                note((end, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
            elif buffer.idle_moves_left and buffer.steps:  # no moves of weights
                buffer.idle_moves_left -= 1
                if not buffer.idle_moves_left:
                    patches.take_off(torch.Tensor, "to")
        return moved

    return to


# backward passes


def _backward(buffer: EventBuffer, original: Any) -> Any:
    note, begin, end = buffer.notes.extend, e.BACKWARD, e.BACKWARD_DONE
    allreduce, prepared, plain = buffer.allreduce, buffer.allreduce.prepared, torch.Tensor
    has_one_value = True

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal has_one_value
        if (
            buffer.in_backward
            or not buffer.full
            or (buffer.has_threads and get_ident() != buffer.thread)
        ):
            return original(tensors, *args, **kwargs)
        note((begin, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
        # On the CPU the loss is read at once: before the backward pass, while the caches hold the
        # forward pass's data, that is as fast as keeping it until the next flush.
        if has_one_value and type(tensors) is plain and tensors.is_cpu and buffer.scaled is None:
            try:
                loss = tensors.item()
                loss = None if type(loss) is complex else loss
            except RuntimeError:  # several values, or none while tracing: check from now on
                loss, has_one_value = None, False
        else:
            loss = _loss(buffer, tensors)
        # Recomputed activations call modules: these belong to the backward pass.
        was_busy, buffer.busy, buffer.in_backward = buffer.busy, True, True
        buffer.awaits_backward = False
        try:
            return original(tensors, *args, **kwargs)
        finally:
            buffer.busy, buffer.in_backward = was_busy, False
            ended_ns = now_ns()
            note((end, ended_ns, None, loss, buffer.queue and buffer.queue.mark()))
            if prepared:
                allreduce.backward_done(ended_ns)

    return functools.wraps(original)(backward)


def _loss(buffer: EventBuffer, tensors: Any) -> Any:
    """Return the loss or a function that reads it later; None if `backward` had no scalar.

    Several losses of one call are added up, as their gradients are. On a device the loss is copied
    before the next mark: when that is reached, the loss is available.
    """
    # Do not consume an iterator: the backward pass needs its items.
    if isinstance(tensors, list | tuple):
        losses = [_loss(buffer, tensor) for tensor in tensors]
        if not losses or None in losses:
            return None
        return losses[0] if len(losses) == 1 else lambda: sum(map(value_of, losses))
    root = tensors
    if not isinstance(root, torch.Tensor) or root.numel() != 1 or root.is_complex():
        return None
    if buffer.scaled is not None:
        identity, unscaled = buffer.scaled
        root = unscaled if identity == id(root) else root
        buffer.scaled = None
    try:
        if type(root) is torch.Tensor and root.is_cpu:
            return root.item()
    except RuntimeError:  # the backward pass is being traced: there are no values
        return None
    loss = root.detach()  # without its graph, which may be large
    return loss.item if buffer.queue is None else buffer.queue.fetch(loss.reshape(1))


def _scale(buffer: EventBuffer, original: Any) -> Any:
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            buffer.scaled = (id(scaled), outputs.detach())
        return scaled

    return functools.wraps(original)(scale)

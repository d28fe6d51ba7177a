"""Hooks into torch that note what a foreign script does. They change nothing of it.

Everything in here runs inside somebody's training loop. It notes an event (`trace.detect.events`)
and goes on; `trace.tracer` decides what to do with them, and when. `install` returns what takes all
hooks off again.

Only the thread that installs them is looked at. Inside a call, a fetch or a move, what happens
further in belongs to it and is not noted (`busy`): so a module costs its submodules one comparison.

Between two of our calls a step touches more memory than the caches hold, so every function and
object that a hook touches costs, and asking the kernel most of all: the process's CPU time is read
in 0.4 us in a loop of its own and in 5 us here. Hooks that a step passes through therefore put
their events down themselves; `Notebook.note` is for all others, and says what an event is.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled, nn, optim
from torch.compiler import is_compiling, is_dynamo_compiling

from stepscope.meter.clock import now_ns, other_clock_ns
from stepscope.meter.device_timeline import queue_of
from stepscope.trace.allreduce_hooks import watch_allreduce
from stepscope.trace.dataloader_hooks import watch_loaders
from stepscope.trace.detect import events as e
from stepscope.trace.detect.spans import value_of
from stepscope.trace.event_buffer import EventBuffer, Patches
from stepscope.trace.sample_count import samples_of_arguments

# Most calls are like this: one object serves for all of them.
_PLAIN_CALL = (True, True, None)  # fields of `Call`: plain tuples are left alone by the collector

# Optimisers that hold another one and pass a step on to it when gradients are complete: their time
# is the optimiser's, but only the step that they pass on is an update.
_PASSES_STEPS_ON = ("accelerate.optimizer",)

# Python's own thread that hands batches' numbers to workers: it never calls torch.
_CARRIES_DATA_ONLY = "QueueFeederThread"

# More steps without a fetch between them than a batch is used for: this loop has no loader.
_STEPS_OF_ONE_FETCH = 8

# So often weights were updated without another optimiser before one can take over from the first.
_STEPS_BEFORE_ANOTHER = 2


def install(buffer: EventBuffer, patches: Patches | None = None) -> Patches:
    """Hook into torch. Undo the result to have everything as before."""
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
    patches.replace(torch.Tensor, "cuda", functools.partial(_span, buffer, e.MOVE, e.MOVED))
    patches.replace(torch.autograd, "backward", functools.partial(_backward, buffer))
    zero = functools.partial(_span, buffer, e.ZERO, e.ZEROED)
    patches.replace(optim.Optimizer, "zero_grad", zero)
    patches.replace(nn.Module, "zero_grad", zero)
    patches.replace(torch.amp.GradScaler, "unscale_", zero)
    patches.replace(torch.amp.GradScaler, "update", zero)
    patches.replace(torch.amp.GradScaler, "step", functools.partial(_scaler_step, buffer))
    patches.replace(torch.amp.GradScaler, "scale", functools.partial(_scale, buffer))
    _watch_optimizers(buffer, patches)
    return patches


def _start_thread(buffer: EventBuffer, original: Any) -> Any:
    """Learn that hooks may be called by others than the thread that is watched."""

    def start(thread: threading.Thread) -> None:
        if getattr(thread, "_name", None) != _CARRIES_DATA_ONLY:  # it may not be made well
            buffer.has_threads = True
        original(thread)

    return functools.wraps(original)(start)


# modules


def _call(buffer: EventBuffer, original: Any) -> Any:
    """Note the outermost module's call. Those inside of it are let through at once.

    So are those without weights after it, until the backward pass: a loss, an activation. They are
    part of the forward pass that is open, whether or not they are modules. But where the first call
    does not tell how many samples it has, the loss may.
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
        if not (grad and buffer.counted) and is_compiling():  # exported; takes longer to ask for
            return original(module, *args, **kwargs)
        if identity in buffer.loops or (buffer.awaits_backward and identity in buffer.weightless):
            return original(module, *args, **kwargs)
        buffer.busy, buffer.calling = True, identity
        if grad and not buffer.full:
            # What is compiled inside of it was compiled for a `busy` that is set.
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
    """Say whether this is torch's `Module.__call__` as we know it.

    It asks only whether the module is compiled, so we can ask in its place: then a call has as many
    Python frames as without us.
    """
    names = getattr(getattr(call, "__code__", None), "co_names", ())
    return call is getattr(nn.Module, "_wrapped_call_impl", None) and names == (
        "_compiled_call_impl",
        "_call_impl",
    )


def _register_root(buffer: EventBuffer, module: nn.Module) -> None:
    """Look at an outermost module for the first time: on which device does it work?"""
    identity = id(module)

    def died(reference: Any) -> None:  # another module may be given its address
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
    if torch._C._is_tracing():  # asking for a length would become part of the graph
        return None
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor) and value.dim():
            return value.size(0) if type(value) is torch.Tensor else len(value)
    return samples_of_arguments((*args, *kwargs.values()))


# moves and other spans


def _to(buffer: EventBuffer, patches: Patches, original: Any) -> Any:
    """Note a move of something that is on the CPU, unless it stays there as it is.

    A script that trains on the CPU asks for moves all the same, twice a step. When many of the
    training moved nothing, and none something, this hook is taken off.
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
            elif buffer.idle_moves_left and buffer.steps:  # not the weights, before the training
                buffer.idle_moves_left -= 1
                if not buffer.idle_moves_left:
                    patches.take_off(torch.Tensor, "to")
        return moved

    return to


def _span(buffer: EventBuffer, begin: int, end: int, original: Any) -> Any:
    """Note when a function begins and ends, unless it is part of something noted already."""
    note = buffer.notes.extend
    # Some update each weight, and forget its gradient, as soon as the backward pass has it.
    in_backward_too = begin == e.ZERO

    def span(*args: Any, **kwargs: Any) -> Any:
        if buffer.busy and not (in_backward_too and buffer.in_backward):
            return original(*args, **kwargs)
        if not buffer.full or (buffer.has_threads and get_ident() != buffer.thread):
            return original(*args, **kwargs)
        note((begin, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
        try:
            return original(*args, **kwargs)
        finally:
            note((end, now_ns(), None, None, buffer.queue and buffer.queue.mark()))

    return functools.wraps(original)(span)


# backward passes and updates


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
        # On the CPU it is read at once: before the backward pass, while caches hold what the
        # forward pass used, that takes no longer than keeping the loss until it is settled.
        if has_one_value and type(tensors) is plain and tensors.is_cpu and buffer.scaled is None:
            try:
                loss = tensors.item()
                loss = None if type(loss) is complex else loss
            except RuntimeError:  # several, or somebody traces and there are none: ask from now on
                loss, has_one_value = None, False
        else:
            loss = _loss(buffer, tensors)
        # Activations that are computed again call modules: they belong to the backward pass.
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
    """Return the loss, or what will read it later; None where `backward` was not called on one.

    Several that it was called on at once are added up, as their gradients are.
    On a device it is copied before the next mark: when that is reached, the loss is there.
    """
    # Not out of an iterator: what is taken from it, the backward pass would not find.
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
    except RuntimeError:  # somebody traces the backward pass, and values are not there
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


def _scaler_step(buffer: EventBuffer, original: Any) -> Any:
    """A scaler's step is an update, also when it finds gradients that it must skip."""

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        update = _update(buffer, lambda _: original(scaler, optimizer, *args, **kwargs))
        return update(optimizer)

    return functools.wraps(original)(step)


def _watch_optimizers(buffer: EventBuffer, patches: Patches) -> None:
    """Note every optimiser's step, from outside of what torch itself has put around it.

    torch wraps a class's `step` when its first object is made, and marks it `hooked`; so do we.
    """

    def watch(cls: Any) -> None:
        step = vars(cls).get("step")
        if step is None or getattr(step, "stepscope", None):
            return
        if getattr(step, "hooked", False):
            patches.replace(cls, "step", functools.partial(_optimizer_step, buffer))
        elif cls.__module__ in _PASSES_STEPS_ON:
            patches.replace(cls, "step", functools.partial(_span, buffer, e.ZERO, e.ZEROED))
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
                buffer.beside.discard(id(optimizer))  # that was another, at the same address
                buffer.note(e.MADE, id(optimizer))

        return patch_step_function

    def defined(original: Any) -> Any:
        def init_subclass(cls: Any, /, **kwargs: Any) -> None:
            super(optim.Optimizer, cls).__init_subclass__(**kwargs)
            watch(cls)

        return classmethod(init_subclass)

    watch_all(optim.Optimizer)
    patches.replace(optim.Optimizer, "_patch_step_function", hooked)
    patches.replace(optim.Optimizer, "__init_subclass__", defined)


def _optimizer_step(buffer: EventBuffer, original: Any) -> Any:
    step = functools.wraps(original)(_update(buffer, original))
    step.stepscope = "update"  # type: ignore[attr-defined]
    return step


def _takes_over(buffer: EventBuffer, optimizer: Any) -> bool:
    """Say whether an optimiser goes on where others have trained, and does not step beside them.

    It is so where nothing is fetched, all of its weights were updated several times by others, and
    this one never stepped beside them: Adam first, and then LBFGS.
    """
    is_inside = buffer.in_step > 0  # of one that passes its steps on
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
    """Return the ids of what it trains; none where it keeps that in its own way."""
    try:
        return {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    except (AttributeError, KeyError, TypeError):
        return set()


def _update(buffer: EventBuffer, original: Any) -> Any:
    note, begin, end = buffer.notes.extend, e.STEP, e.STEPPED

    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if buffer.has_threads and get_ident() != buffer.thread:
            return original(optimizer, *args, **kwargs)
        if buffer.calling is not None and not buffer.in_backward:  # no forward pass: it updates
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
            if buffer.in_step:  # of one that passes its steps on
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

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
from stepscope.trace.allreduce_hooks import watch_exchanges
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


def install(book: EventBuffer, patches: Patches | None = None) -> Patches:
    """Hook into torch. Undo the result to have everything as before."""
    patches = patches or Patches()
    book.has_threads = threading.active_count() > 1
    patches.replace(threading.Thread, "start", functools.partial(_start_thread, book))
    patches.replace(nn.Module, "__call__", functools.partial(_call, book))
    watch_loaders(book, patches)
    watch_exchanges(book, patches)
    book.watch_moves = lambda: patches.replace(
        torch.Tensor, "to", functools.partial(_to, book, patches)
    )
    if book.idle_moves_left != 0:
        book.watch_moves()
    patches.replace(torch.Tensor, "cuda", functools.partial(_span, book, e.MOVE, e.MOVED))
    patches.replace(torch.autograd, "backward", functools.partial(_backward, book))
    zero = functools.partial(_span, book, e.ZERO, e.ZEROED)
    patches.replace(optim.Optimizer, "zero_grad", zero)
    patches.replace(nn.Module, "zero_grad", zero)
    patches.replace(torch.amp.GradScaler, "unscale_", zero)
    patches.replace(torch.amp.GradScaler, "update", zero)
    patches.replace(torch.amp.GradScaler, "step", functools.partial(_scaler_step, book))
    patches.replace(torch.amp.GradScaler, "scale", functools.partial(_scale, book))
    _watch_optimizers(book, patches)
    return patches


def _start_thread(book: EventBuffer, original: Any) -> Any:
    """Learn that hooks may be called by others than the thread that is watched."""

    def start(thread: threading.Thread) -> None:
        if getattr(thread, "_name", None) != _CARRIES_DATA_ONLY:  # it may not be made well
            book.has_threads = True
        original(thread)

    return functools.wraps(original)(start)


# modules


def _call(book: EventBuffer, original: Any) -> Any:
    """Note the outermost module's call. Those inside of it are let through at once.

    So are those without weights after it, until the backward pass: a loss, an activation. They are
    part of the forward pass that is open, whether or not they are modules. But where the first call
    does not tell how many samples it has, the loss may.
    """
    note, passes_on = book.notes.extend, _only_passes_on(original)
    begin, end = e.CALL, e.CALLED

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if book.busy:
            if passes_on and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return original(module, *args, **kwargs)
        if is_dynamo_compiling() or (book.has_threads and get_ident() != book.thread):
            return original(module, *args, **kwargs)
        grad, identity = is_grad_enabled(), id(module)
        if grad and identity not in book.roots:
            _meet(book, module)
        if not (grad and book.counted) and is_compiling():  # exported; takes longer to ask for
            return original(module, *args, **kwargs)
        if identity in book.loops or (book.awaits_backward and identity in book.weightless):
            return original(module, *args, **kwargs)
        book.busy, book.calling = True, identity
        if grad and not book.full:
            # What is compiled inside of it was compiled for a `busy` that is set.
            try:
                return original(module, *args, **kwargs)
            finally:
                if book.calling == identity:
                    book.busy, book.calling = False, None
        samples, is_told = None, book.counted
        book.called = True
        if is_told:
            book.counted = False
        else:
            samples = _samples_of_call(args, kwargs)
            is_told = samples is not None
        is_plain = grad and samples is None and module.training
        how = _PLAIN_CALL if is_plain else (grad, module.training, samples)
        note((begin, now_ns(), identity, how, book.queue and book.queue.mark()))
        try:
            if passes_on and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return original(module, *args, **kwargs)
        finally:
            if book.calling == identity:
                book.busy, book.calling = False, None
                book.awaits_backward = book.awaits_backward or (grad and is_told)
                note((end, now_ns(), grad, None, book.queue and book.queue.mark()))

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


def _meet(book: EventBuffer, module: nn.Module) -> None:
    """Look at an outermost module for the first time: on which device does it work?"""
    identity = id(module)

    def died(reference: Any) -> None:  # another module may be given its address
        book.roots.pop(identity, None)
        book.weightless.discard(identity)

    book.roots[identity] = weakref.ref(module, died)
    parameter = next(iter(module.parameters()), None)  # some return a list
    if parameter is None:
        book.weightless.add(identity)
    if parameter is not None and book.device is None:
        book.device = str(parameter.device)
        book.queue = queue_of(parameter.device)
    if parameter is not None and not parameter.is_cpu:
        if book.idle_moves_left == 0:
            book.watch_moves()
        book.idle_moves_left = None


def _samples_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    if torch._C._is_tracing():  # asking for a length would become part of the graph
        return None
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor) and value.dim():
            return value.size(0) if type(value) is torch.Tensor else len(value)
    return samples_of_arguments((*args, *kwargs.values()))


# moves and other spans


def _to(book: EventBuffer, patches: Patches, original: Any) -> Any:
    """Note a move of something that is on the CPU, unless it stays there as it is.

    A script that trains on the CPU asks for moves all the same, twice a step. When many of the
    training moved nothing, and none something, this hook is taken off.
    """
    device_kinds = (torch.device, str, int)
    note, begin, end = book.notes.extend, e.MOVE, e.MOVED

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if book.busy or not book.full:
            return original(tensor, *args, **kwargs)
        device = args[0] if args else kwargs.get("device")
        if (
            not tensor.is_cpu
            or not isinstance(device, device_kinds)
            or is_compiling()
            or (book.has_threads and get_ident() != book.thread)
        ):
            return original(tensor, *args, **kwargs)
        book.busy = True
        begin_ns, mark = now_ns(), book.queue and book.queue.mark()
        moved = None
        try:
            moved = original(tensor, *args, **kwargs)
        finally:
            book.busy = False
            if moved is not tensor:
                book.idle_moves_left = None
                note((begin, begin_ns, None, None, mark))
                note((end, now_ns(), None, None, book.queue and book.queue.mark()))
            elif book.idle_moves_left and book.steps:  # not the weights, before the training
                book.idle_moves_left -= 1
                if not book.idle_moves_left:
                    patches.take_off(torch.Tensor, "to")
        return moved

    return to


def _span(book: EventBuffer, begin: int, end: int, original: Any) -> Any:
    """Note when a function begins and ends, unless it is part of something noted already."""
    note = book.notes.extend
    # Some update each weight, and forget its gradient, as soon as the backward pass has it.
    in_backward_too = begin == e.ZERO

    def span(*args: Any, **kwargs: Any) -> Any:
        if book.busy and not (in_backward_too and book.in_backward):
            return original(*args, **kwargs)
        if not book.full or (book.has_threads and get_ident() != book.thread):
            return original(*args, **kwargs)
        note((begin, now_ns(), None, None, book.queue and book.queue.mark()))
        try:
            return original(*args, **kwargs)
        finally:
            note((end, now_ns(), None, None, book.queue and book.queue.mark()))

    return functools.wraps(original)(span)


# backward passes and updates


def _backward(book: EventBuffer, original: Any) -> Any:
    note, begin, end = book.notes.extend, e.BACKWARD, e.BACKWARD_DONE
    exchanges, prepared, plain = book.exchanges, book.exchanges.prepared, torch.Tensor
    has_one_value = True

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal has_one_value
        if book.in_backward or not book.full or (book.has_threads and get_ident() != book.thread):
            return original(tensors, *args, **kwargs)
        note((begin, now_ns(), None, None, book.queue and book.queue.mark()))
        # On the CPU it is read at once: before the backward pass, while caches hold what the
        # forward pass used, that takes no longer than keeping the loss until it is settled.
        if has_one_value and type(tensors) is plain and tensors.is_cpu and book.scaled is None:
            try:
                loss = tensors.item()
                loss = None if type(loss) is complex else loss
            except RuntimeError:  # several, or somebody traces and there are none: ask from now on
                loss, has_one_value = None, False
        else:
            loss = _loss(book, tensors)
        # Activations that are computed again call modules: they belong to the backward pass.
        was_busy, book.busy, book.in_backward = book.busy, True, True
        book.awaits_backward = False
        try:
            return original(tensors, *args, **kwargs)
        finally:
            book.busy, book.in_backward = was_busy, False
            ended_ns = now_ns()
            note((end, ended_ns, None, loss, book.queue and book.queue.mark()))
            if prepared:
                exchanges.backward_done(ended_ns)

    return functools.wraps(original)(backward)


def _loss(book: EventBuffer, tensors: Any) -> Any:
    """Return the loss, or what will read it later; None where `backward` was not called on one.

    Several that it was called on at once are added up, as their gradients are.
    On a device it is copied before the next mark: when that is reached, the loss is there.
    """
    # Not out of an iterator: what is taken from it, the backward pass would not find.
    if isinstance(tensors, list | tuple):
        losses = [_loss(book, tensor) for tensor in tensors]
        if not losses or None in losses:
            return None
        return losses[0] if len(losses) == 1 else lambda: sum(map(value_of, losses))
    root = tensors
    if not isinstance(root, torch.Tensor) or root.numel() != 1 or root.is_complex():
        return None
    if book.scaled is not None:
        identity, unscaled = book.scaled
        root = unscaled if identity == id(root) else root
        book.scaled = None
    try:
        if type(root) is torch.Tensor and root.is_cpu:
            return root.item()
    except RuntimeError:  # somebody traces the backward pass, and values are not there
        return None
    loss = root.detach()  # without its graph, which may be large
    return loss.item if book.queue is None else book.queue.fetch(loss.reshape(1))


def _scale(book: EventBuffer, original: Any) -> Any:
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            book.scaled = (id(scaled), outputs.detach())
        return scaled

    return functools.wraps(original)(scale)


def _scaler_step(book: EventBuffer, original: Any) -> Any:
    """A scaler's step is an update, also when it finds gradients that it must skip."""

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        update = _update(book, lambda _: original(scaler, optimizer, *args, **kwargs))
        return update(optimizer)

    return functools.wraps(original)(step)


def _watch_optimizers(book: EventBuffer, patches: Patches) -> None:
    """Note every optimiser's step, from outside of what torch itself has put around it.

    torch wraps a class's `step` when its first object is made, and marks it `hooked`; so do we.
    """

    def watch(cls: Any) -> None:
        step = vars(cls).get("step")
        if step is None or getattr(step, "stepscope", None):
            return
        if getattr(step, "hooked", False):
            patches.replace(cls, "step", functools.partial(_optimizer_step, book))
        elif cls.__module__ in _PASSES_STEPS_ON:
            patches.replace(cls, "step", functools.partial(_span, book, e.ZERO, e.ZEROED))
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
                patches.replace(cls, "step", functools.partial(_optimizer_step, book))
            if get_ident() == book.thread:
                book.updated_by = ()
                book.optimizers[id(optimizer)] = weakref.ref(optimizer)
                book.beside.discard(id(optimizer))  # that was another, at the same address
                book.note(e.MADE, id(optimizer))

        return patch_step_function

    def defined(original: Any) -> Any:
        def init_subclass(cls: Any, /, **kwargs: Any) -> None:
            super(optim.Optimizer, cls).__init_subclass__(**kwargs)
            watch(cls)

        return classmethod(init_subclass)

    watch_all(optim.Optimizer)
    patches.replace(optim.Optimizer, "_patch_step_function", hooked)
    patches.replace(optim.Optimizer, "__init_subclass__", defined)


def _optimizer_step(book: EventBuffer, original: Any) -> Any:
    step = functools.wraps(original)(_update(book, original))
    step.stepscope = "update"  # type: ignore[attr-defined]
    return step


def _takes_over(book: EventBuffer, optimizer: Any) -> bool:
    """Say whether an optimiser goes on where others have trained, and does not step beside them.

    It is so where nothing is fetched, all of its weights were updated several times by others, and
    this one never stepped beside them: Adam first, and then LBFGS.
    """
    is_inside = book.in_step > 0  # of one that passes its steps on
    if is_inside or book.steps_since_fetch < _STEPS_BEFORE_ANOTHER or id(optimizer) in book.beside:
        return False
    known = (book.optimizers.get(identity) for identity in book.updated_by)
    before = [each for reference in known if reference and (each := reference()) is not None]
    trained = set().union(*map(_weights, before))
    weights = _weights(optimizer)
    if not weights or not weights <= trained:
        book.beside.add(id(optimizer))
        return False
    return True


def _weights(optimizer: Any) -> set[int]:
    """Return the ids of what it trains; none where it keeps that in its own way."""
    try:
        return {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    except (AttributeError, KeyError, TypeError):
        return set()


def _update(book: EventBuffer, original: Any) -> Any:
    note, begin, end = book.notes.extend, e.STEP, e.STEPPED

    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if book.has_threads and get_ident() != book.thread:
            return original(optimizer, *args, **kwargs)
        if book.calling is not None and not book.in_backward:  # no forward pass: it updates
            book.loops.add(book.calling)
            book.busy, book.calling = False, None
            if book.full:
                book.note(e.CALLED, True)
        identity = id(optimizer)
        if book.updated_by and identity not in book.updated_by and _takes_over(book, optimizer):
            book.updated_by = ()
            book.note(e.MADE, identity)
        book.in_step += 1
        book.awaits_backward = False
        note((begin, now_ns(), identity, None, book.queue and book.queue.mark()))
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            book.in_step -= 1
            if book.in_step:  # of one that passes its steps on
                note((end, now_ns(), identity, other_clock_ns(), book.queue and book.queue.mark()))
            else:
                before = book.updated_by
                is_first = not before or identity in before
                if is_first and book.steps - book.steps_at_fetch > _STEPS_OF_ONE_FETCH:
                    book.at_boundary()
                note((end, now_ns(), identity, other_clock_ns(), book.queue and book.queue.mark()))
                if is_first:
                    book.steps += 1
                    book.updated_by = (identity,)
                else:
                    book.beside.add(identity)
                    book.updated_by = (*before, identity)
                if book.at_step_end is not None:
                    book.at_step_end()

    return update

"""Hooks into torch that note what a foreign script does. They change nothing of it.

Everything in here runs inside somebody's training loop. It notes an event (`measure.events`) and
goes on; `measure.tracer` decides what to do with them, and when. `install` returns what takes all
hooks off again.

Only the thread that installs them is looked at. Inside a call, a fetch or a move, what happens
further in belongs to it and is not noted (`busy`): so a module costs its submodules one comparison.

Between two of our calls a step touches more memory than the caches hold, so every function and
object that a hook touches costs, and asking the kernel most of all: the process's CPU time is read
in 0.4 us in a loop of its own and in 5 us here. Hooks that a step passes through therefore append
their events themselves; `Notebook.note` is for all others, and says what an event is.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled, nn, optim
from torch.compiler import is_compiling
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader

from stepscope.measure import events as e
from stepscope.measure.batches import samples_of
from stepscope.measure.clock import now_ns
from stepscope.measure.device import DeviceQueue, queue_of
from stepscope.measure.foreign_loading import start_timed
from stepscope.measure.loading import LoadTiming

other_clock_ns = time.monotonic_ns
# A named tuple's own `__new__` is a Python function: this is four times as fast.
_tuple = tuple.__new__

# Optimisers that hold another one and pass a step on to it when gradients are complete: their time
# is the optimiser's, but only the step that they pass on is an update.
_PASSES_STEPS_ON = ("accelerate.optimizer",)

# More updates without a fetch between them than any step has: this loop has no loader.
_UPDATES_OF_ONE_FETCH = 8


@dataclass(slots=True)
class Notebook:
    """What the hooks share: the events so far, and what they need to know of each other."""

    # Called between two steps: before a fetch that follows an update, or before the end of an
    # update where nothing is fetched.
    at_boundary: Callable[[], None] = lambda: None
    # Called when a step may just have become complete; it may raise to end the script.
    at_step_end: Callable[[], None] | None = None
    events: list[e.Event] = field(default_factory=list)
    full: bool = True
    busy: bool = False
    device: str | None = None
    queue: DeviceQueue | None = None
    updates: int = 0
    roots: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)

    thread: int = field(default_factory=get_ident)
    # The outermost module that is being called, and those that turned out to hold a whole loop.
    calling: int | None = None
    loops: set[int] = field(default_factory=set)
    in_backward: bool = False
    in_step: int = 0
    updated: bool = False
    updates_since_fetch: int = 0
    timings: deque[LoadTiming] = field(default_factory=deque)
    scaled: tuple[int, torch.Tensor] | None = None
    keys: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    loaders: dict[int, tuple[weakref.ref[Any], int]] = field(default_factory=dict)
    next_key: int = 0
    longest: int = 0

    def note(self, kind: int, subject: Any = None, detail: Any = None) -> None:
        """Put down what happened now."""
        mark = None if self.queue is None else self.queue.mark()
        self.events.append((kind, now_ns(), subject, detail, mark))

    def take_timing(self, timing: LoadTiming) -> None:
        """Take a worker's account of the batch that is being fetched."""
        self.timings.append(timing)

    def new_key(self) -> int:
        """Return a number for an iteration."""
        self.next_key += 1
        return self.next_key


class Patches:
    """Attributes replaced for a while."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of an attribute of a class or module."""
        original = getattr(owner, name)
        own = name in vars(owner)
        stored = vars(owner).get(name)
        setattr(owner, name, make(original))
        self._undo.append(lambda: setattr(owner, name, stored) if own else delattr(owner, name))

    def also(self, undo: Callable[[], None]) -> None:
        """Have something else undone with them."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back, the last one first."""
        while self._undo:
            self._undo.pop()()


def install(book: Notebook) -> Patches:
    """Hook into torch. Undo the result to have everything as before."""
    patches = Patches()
    multi = torch_dataloader._MultiProcessingDataLoaderIter
    single = torch_dataloader._SingleProcessDataLoaderIter
    patches.replace(nn.Module, "__call__", functools.partial(_call, book))
    patches.replace(DataLoader, "__iter__", functools.partial(_iterate, book))
    patches.replace(
        torch_dataloader._BaseDataLoaderIter, "__next__", functools.partial(_fetch, book)
    )
    patches.replace(single, "_next_data", functools.partial(_load_here, book))
    patches.replace(multi, "__del__", functools.partial(_drop, book))
    patches.replace(torch.Tensor, "to", functools.partial(_to, book))
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


# modules


def _call(book: Notebook, original: Any) -> Any:
    """Note the outermost module's call. Those inside of it are let through at once."""
    append, passes_on = book.events.append, _only_passes_on(original)
    begin, end, new = e.CALL, e.CALLED, e.Call

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if book.busy:
            if passes_on and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return original(module, *args, **kwargs)
        grad = is_grad_enabled()
        if (grad and not book.full) or is_compiling() or get_ident() != book.thread:
            return original(module, *args, **kwargs)
        identity = id(module)
        if grad and identity not in book.roots:
            _meet(book, module)
        if identity in book.loops:
            return original(module, *args, **kwargs)
        book.busy, book.calling = True, identity
        how = _tuple(new, (grad, module.training, _samples_of_call(args, kwargs), other_clock_ns()))
        append((begin, now_ns(), identity, how, book.queue and book.queue.mark()))
        try:
            return original(module, *args, **kwargs)
        finally:
            if book.calling == identity:
                book.busy, book.calling = False, None
                append((end, now_ns(), grad, other_clock_ns(), book.queue and book.queue.mark()))

    return call


def _only_passes_on(call: Any) -> bool:
    """Say whether this is torch's `Module.__call__` as we know it.

    It asks only whether the module is compiled, so we can ask in its place: then a submodule's
    call has as many Python frames as without us.
    """
    names = getattr(getattr(call, "__code__", None), "co_names", ())
    return call is getattr(nn.Module, "_wrapped_call_impl", None) and names == (
        "_compiled_call_impl",
        "_call_impl",
    )


def _meet(book: Notebook, module: nn.Module) -> None:
    """Look at an outermost module for the first time: on which device does it work?"""
    book.roots[id(module)] = weakref.ref(module)
    parameter = next(module.parameters(), None)
    if parameter is not None and book.device is None:
        book.device = str(parameter.device)
        book.queue = queue_of(parameter.device)


def _samples_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    if torch._C._is_tracing():  # asking for a length would become part of the graph
        return None
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor) and value.dim():
            return value.size(0) if type(value) is torch.Tensor else len(value)
    return None


# loaders


def _iterate(book: Notebook, original: Any) -> Any:
    def iterate(loader: Any) -> Any:
        if book.busy or get_ident() != book.thread:
            return start_timed(loader, original, book.take_timing)
        key = book.keys.get(id(loader._iterator)) or book.new_key()
        book.note(e.ITERATE, key, other_clock_ns())
        book.busy = True
        iterator = None
        try:
            iterator = start_timed(loader, original, book.take_timing)
        finally:
            book.busy = False
            length = None if iterator is None else _length(loader)
            book.longest = max(book.longest, length or 0)
            book.note(e.ITERATED, key, e.Iteration(length, _number_of(book, loader)))
        _remember(book, iterator, key)
        return iterator

    return iterate


def _number_of(book: Notebook, loader: Any) -> int:
    """Tell loaders apart: another one may be given the address of one that is gone."""
    reference, number = book.loaders.get(id(loader), (None, 0))
    if reference is None or reference() is not loader:
        number = book.new_key()
        book.loaders[id(loader)] = (weakref.ref(loader), number)
    return number


def _length(loader: Any) -> int | None:
    """Count the batches to come; an iterable data set is not asked, torch would remember that."""
    iterable = loader._dataset_kind != torch_dataloader._DatasetKind.Map
    try:
        return None if iterable else len(loader)
    except (TypeError, NotImplementedError):  # a sampler without a length
        return None


def _remember(book: Notebook, iterator: Any, key: int) -> None:
    identity = id(iterator)
    book.keys[identity] = key

    def died(reference: Any) -> None:
        book.deaths.pop(identity, None)
        if book.keys.pop(identity, None) is not None and get_ident() == book.thread:
            book.note(e.DROPPED, key, other_clock_ns())

    book.deaths[identity] = weakref.ref(iterator, died)


def _fetch(book: Notebook, original: Any) -> Any:
    append, note, timings = book.events.append, book.note, book.timings
    begin, end, keys = e.FETCH, e.FETCHED, book.keys

    def fetch(iterator: Any) -> Any:
        if book.busy or get_ident() != book.thread:
            return original(iterator)
        key = keys.get(id(iterator))
        if key is None:  # made before we looked, or asked again after its end
            key = book.new_key()
            note(e.ITERATE, key, other_clock_ns())
            note(e.ITERATED, key, e.Iteration(None, None))
            _remember(book, iterator, key)
        if timings:
            timings.clear()
        ends_a_step = book.updated
        if ends_a_step:
            book.updated = False
            book.at_boundary()
        append((begin, now_ns(), key, other_clock_ns(), book.queue and book.queue.mark()))
        if ends_a_step and book.at_step_end is not None:
            book.at_step_end()
        book.updates_since_fetch = 0
        book.busy = True
        try:
            batch = original(iterator)
        except StopIteration:
            book.busy = False
            note(e.EXHAUSTED, key, other_clock_ns())
            # A persistent iterator comes again, with a new key, as a new iteration.
            keys.pop(id(iterator), None)
            raise
        except BaseException:
            book.busy = False
            note(e.FETCHED, key, (None, None))
            raise
        book.busy = False
        got = (samples_of(batch), timings.popleft() if timings else None)
        append((end, now_ns(), key, got, book.queue and book.queue.mark()))
        return batch

    return fetch


def _load_here(book: Notebook, original: Any) -> Any:
    """Time the making of a batch in the training process itself."""
    take_timing, cpu_ns = book.timings.append, time.process_time_ns

    def load_here(iterator: Any) -> Any:
        cpu_start, start = cpu_ns(), now_ns()
        batch = original(iterator)
        wall, cpu = now_ns() - start, cpu_ns() - cpu_start
        take_timing(_tuple(LoadTiming, (-1, start, wall, cpu)))
        return batch

    return load_here


def _drop(book: Notebook, original: Any) -> Any:
    """Note how long it takes to end workers whose loader was not read to its end."""

    def drop(iterator: Any) -> None:
        key = book.keys.get(id(iterator))
        if key is None or book.busy or get_ident() != book.thread:
            original(iterator)
            return
        book.note(e.FETCH, key, other_clock_ns())
        try:
            original(iterator)
        finally:
            book.note(e.EXHAUSTED, key, other_clock_ns())
            book.keys.pop(id(iterator), None)

    return drop


# moves and other spans


def _to(book: Notebook, original: Any) -> Any:
    device_kinds = (torch.device, str, int)
    append, begin, end = book.events.append, e.MOVE, e.MOVED

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            book.busy
            or not book.full
            or not tensor.is_cpu
            or not ((args and isinstance(args[0], device_kinds)) or "device" in kwargs)
            or is_compiling()
            or get_ident() != book.thread
        ):
            return original(tensor, *args, **kwargs)
        book.busy = True
        append((begin, now_ns(), None, None, book.queue and book.queue.mark()))
        try:
            return original(tensor, *args, **kwargs)
        finally:
            append((end, now_ns(), None, None, book.queue and book.queue.mark()))
            book.busy = False

    return to


def _span(book: Notebook, begin: int, end: int, original: Any) -> Any:
    """Note when a function begins and ends, unless it is part of something noted already."""
    append = book.events.append

    def span(*args: Any, **kwargs: Any) -> Any:
        if book.busy or not book.full or get_ident() != book.thread:
            return original(*args, **kwargs)
        append((begin, now_ns(), None, None, book.queue and book.queue.mark()))
        try:
            return original(*args, **kwargs)
        finally:
            append((end, now_ns(), None, None, book.queue and book.queue.mark()))

    return functools.wraps(original)(span)


# backward passes and updates


def _backward(book: Notebook, original: Any) -> Any:
    append, begin, end = book.events.append, e.BACKWARD, e.BACKWARD_DONE

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if book.in_backward or not book.full or get_ident() != book.thread:
            return original(tensors, *args, **kwargs)
        # Activations that are computed again call modules: they belong to the backward pass.
        was_busy, book.busy, book.in_backward = book.busy, True, True
        append((begin, now_ns(), None, other_clock_ns(), book.queue and book.queue.mark()))
        try:
            return original(tensors, *args, **kwargs)
        finally:
            book.busy, book.in_backward = was_busy, False
            # The loss is copied before the mark: when that is reached, the loss is there.
            loss = _loss(book, tensors)
            append((end, now_ns(), None, loss, book.queue and book.queue.mark()))

    return functools.wraps(original)(backward)


def _loss(book: Notebook, tensors: Any) -> Any:
    """Return what will read the loss later, or None where `backward` was not called on one."""
    root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
    if root is None or root.numel() != 1:
        return None
    if book.scaled is not None:
        identity, unscaled = book.scaled
        root = unscaled if identity == id(root) else root
        book.scaled = None
    loss = root.detach()  # without its graph, which may be large
    return loss.item if book.queue is None else book.queue.fetch(loss.reshape(1))


def _scale(book: Notebook, original: Any) -> Any:
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            book.scaled = (id(scaled), outputs.detach())
        return scaled

    return functools.wraps(original)(scale)


def _scaler_step(book: Notebook, original: Any) -> Any:
    """A scaler's step is an update, also when it finds gradients that it must skip."""

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _begin_update(book, optimizer)
        try:
            return original(scaler, optimizer, *args, **kwargs)
        finally:
            _end_update(book, optimizer)

    return functools.wraps(original)(step)


def _watch_optimizers(book: Notebook, patches: Patches) -> None:
    """Note every optimiser's step, from outside of what torch itself has put around it.

    torch wraps a class's `step` when its first object is made, and marks it `hooked`; so do we.
    """

    def watch(cls: Any) -> None:
        step = vars(cls).get("step")
        if step is None or getattr(step, "stepscope", None):
            return
        if getattr(step, "hooked", False):
            patches.replace(cls, "step", functools.partial(_update, book))
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
                patches.replace(cls, "step", functools.partial(_update, book))

        return patch_step_function

    def defined(original: Any) -> Any:
        def init_subclass(cls: Any, /, **kwargs: Any) -> None:
            super(optim.Optimizer, cls).__init_subclass__(**kwargs)
            watch(cls)

        return classmethod(init_subclass)

    watch_all(optim.Optimizer)
    patches.replace(optim.Optimizer, "_patch_step_function", hooked)
    patches.replace(optim.Optimizer, "__init_subclass__", defined)


def _update(book: Notebook, original: Any) -> Any:
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _begin_update(book, optimizer)
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            _end_update(book, optimizer)

    wrapped = functools.wraps(original)(step)
    wrapped.stepscope = "update"  # type: ignore[attr-defined]
    return wrapped


def _begin_update(book: Notebook, optimizer: Any) -> None:
    if get_ident() != book.thread:
        return
    if book.calling is not None and not book.in_backward:  # no forward pass: it updates
        book.loops.add(book.calling)
        book.busy, book.calling = False, None
        book.note(e.CALLED, True, other_clock_ns())
    book.in_step += 1
    mark = book.queue and book.queue.mark()
    book.events.append((e.STEP, now_ns(), id(optimizer), other_clock_ns(), mark))


def _end_update(book: Notebook, optimizer: Any) -> None:
    if get_ident() != book.thread:
        return
    book.in_step = max(0, book.in_step - 1)
    outermost = book.in_step == 0
    if outermost and book.updates_since_fetch > _UPDATES_OF_ONE_FETCH:
        book.at_boundary()
    mark = book.queue and book.queue.mark()
    book.events.append((e.STEPPED, now_ns(), id(optimizer), other_clock_ns(), mark))
    if outermost:
        book.updates += 1
        book.updated = True
        book.updates_since_fetch += 1
        if book.at_step_end is not None:
            book.at_step_end()

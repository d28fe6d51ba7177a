"""Updates without an optimiser of torch, inferred from backward passes and changed weights.

Some scripts change their weights by hand, with `torch.func`, or with an optimiser of their own. The
watch notes the weights of each backward pass: the leaves of its graph, or the inputs of
`torch.autograd.grad`, which `torch.func` calls too. At the next fetch, module call or backward pass
it looks whether they have changed. If so, it records STEP and STEPPED, without duration: when
the update began is unknown. As soon as the script makes an optimiser of torch, the watch ends and
its hooks are removed.

A weight has changed if

- its version counter or its address differs: `p -= lr * p.grad`, `p.data = ...`;
- its memory is gone: the script has replaced it by another tensor;
- its values differ, where neither of these ever happens: `p.data.add_(...)` leaves no other trace.

Where a script replaces weights and something keeps the old ones alive, the change is known only
when the next pass uses the new ones. Then the events are inserted where they belong: before the
fetch in between.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import dataloader as torch_dataloader

from stepscope.meter.clock import now_ns, other_clock_ns
from stepscope.trace import event_buffer as e

if TYPE_CHECKING:
    from stepscope.trace.event_buffer import HookState
    from stepscope.trace.patches import Patches

UPDATES_NOT_TIMED = (
    "the weights were updated without an optimiser of torch: these updates were inferred from "
    "backward passes and changed weights, and their time is in other_s"
)

# Passes whose graph is searched for weights; later ones only if a module is new or weights are
# gone. A search takes 1 us per node.
_SEARCHED_PASSES = 8

# Shapes of inputs of `torch.autograd.grad` that are kept apart.
_MOST_INPUTS = 32

# How many of the weights of a backward pass are compared by value, and by how many of their values.
# The smallest are: a bias changes more often than any one value of a kernel. Each takes 2 to 5 us.
_SAMPLED_WEIGHTS = 3
_SAMPLED_VALUES = 16

# After more steps than this without a fetch, the loop has no loader.
STEPS_OF_ONE_FETCH = 8

# An update between two looks happened before the first of these.
_BOUNDARIES = frozenset({e.ITERATE, e.FETCH, e.DROPPED})


class Weight:
    """A weight as it was when last looked at. A tensor that replaces another is the same weight."""

    __slots__ = ("_address", "_storage", "_tensor", "_values", "_version", "samples", "shape")

    def __init__(self, tensor: torch.Tensor, *, samples: bool) -> None:
        self.shape = tensor.shape
        # Reading values would wait for a device.
        self.samples = samples and tensor.is_cpu and tensor.is_contiguous() and tensor.numel() > 0
        self.bind(tensor)

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor, if it still exists."""
        return self._tensor()

    @property
    def is_gone(self) -> bool:
        """Whether the tensor and its memory are gone."""
        return self._tensor() is None and self._storage.expired()

    def bind(self, tensor: torch.Tensor) -> None:
        """Take the tensor as it is now, or another one in its place."""
        self._tensor = weakref.ref(tensor)
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._version, self._address = tensor._version, tensor.data_ptr()
        self._values = _values(tensor) if self.samples else []

    def renew(self, tensor: torch.Tensor) -> None:
        """Take the same tensor as it is now; its values were renewed when they were compared."""
        if tensor.data_ptr() != self._address:
            self.bind(tensor)
        self._version = tensor._version

    def is_marked(self, tensor: torch.Tensor) -> bool:
        """Return whether the version counter or the address of the tensor differs."""
        return tensor._version != self._version or tensor.data_ptr() != self._address

    def has_other_values(self, tensor: torch.Tensor) -> bool:
        """Return whether a sample of the values differs, and take it."""
        if not self.samples:
            return False
        before, self._values = self._values, _values(tensor)
        return self._values != before


def _values(tensor: torch.Tensor) -> list[float | None]:
    sample, count = tensor.detach().flatten(), tensor.numel()
    if count > _SAMPLED_VALUES:
        sample = sample[:: count // _SAMPLED_VALUES]
    return [value if value == value else None for value in sample.tolist()]  # NaN equals nothing


class WeightWatch:
    """The weights of a script without an optimiser, and the updates inferred from them."""

    def __init__(self, state: HookState, patches: Patches, record_backward: Any) -> None:
        self._state, self._patches, self._record_backward = state, patches, record_backward
        self._weights: list[Weight] = []
        self._inputs: dict[Any, list[Weight]] = {}  # of `torch.autograd.grad`, by their shapes
        self._updaters: list[set[Weight]] = []  # weights that change together
        self._passes = self._modules = self._steps = 0
        # Whether there was a backward pass since the last update, and a look since that pass.
        self._has_pass = self._has_looked = False
        self._compares_values = True
        self._calls_backward = False
        self._place = 0  # in the recorded fields: what is before it came before the update
        self._hooks = [
            (torch_dataloader._BaseDataLoaderIter, "__next__", self._fetch),
            (torch.autograd, "backward", self._backward),
            (torch.autograd, "grad", self._grad),
        ]
        for owner, name, hook in self._hooks:
            patches.replace(owner, name, hook)

    def stop(self) -> None:
        """Remove the hooks: the script has an optimiser, or its weights cannot be watched."""
        for owner, name, _ in self._hooks:
            self._patches.restore_one(owner, name)
        self._state.weights = None
        self._has_pass = False
        self._weights.clear()
        self._inputs.clear()

    # hooks

    @property
    def _is_off(self) -> bool:
        """Whether a hook is called elsewhere than in the traced loop."""
        state = self._state
        is_elsewhere = state.has_threads and get_ident() != state.thread
        return state.weights is not self or is_elsewhere

    def _fetch(self, original: Any) -> Any:
        def fetch(iterator: Any) -> Any:
            if self._has_pass and not self._is_off and not self._state.busy:
                self.look()
            return original(iterator)

        return fetch

    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and not self._is_off and not self._state.in_backward:
                self.look()
                self._begin_pass(self._take_graph, tensors)
            return original(tensors, *args, **kwargs)

        return functools.wraps(original)(backward)

    def _grad(self, original: Any) -> Any:
        """Record `torch.autograd.grad` as a backward pass where it takes the place of one."""
        recorded = self._record_backward(original)

        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._is_off or self._state.busy or self._calls_backward:
                return original(outputs, inputs, *args, **kwargs)
            creates_graph = args[2] if len(args) > 2 else kwargs.get("create_graph", False)
            if not _is_outermost(creates_graph):
                return original(outputs, inputs, *args, **kwargs)
            self.look()
            self._begin_pass(self._take_inputs, inputs)
            return recorded(outputs, inputs, *args, **kwargs)

        return functools.wraps(original)(grad)

    # backward passes

    def _begin_pass(self, take: Any, tensors: Any) -> None:
        """Note the weights of a backward pass."""
        begin_ns = now_ns()
        try:
            take(tensors)
            if not self._has_pass:  # else an update after an earlier pass is still to come
                for weight in self._weights:
                    tensor = weight.tensor
                    if tensor is not None and weight.is_marked(tensor):
                        weight.renew(tensor)
            self._has_pass, self._has_looked = True, False
            self._place = self._recorded()
        except Exception:  # tensors of another kind: the script continues without the watch
            self.stop()
        finally:
            self._state.inferring_ns += now_ns() - begin_ns

    def _take_graph(self, roots: Any) -> None:
        """Note the weights in the graph of a backward pass."""
        self._passes += 1
        if not self._calls_backward:
            self._calls_backward = True
            self._weights.clear()
            self._inputs.clear()
        modules = len(self._state.roots)
        has_gone = any(weight.is_gone for weight in self._weights)
        if self._passes > _SEARCHED_PASSES and modules == self._modules and not has_gone:
            return
        self._modules = modules
        known = {id(tensor) for weight in self._weights if (tensor := weight.tensor) is not None}
        leaves = list(_leaves(roots if isinstance(roots, list | tuple) else [roots]))
        # Where modules have weights, other leaves are inputs.
        parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
        self._take_new([leaf for leaf in parameters or leaves if id(leaf) not in known])
        self._weights = [weight for weight in self._weights if not weight.is_gone]

    def _take_new(self, tensors: Sequence[torch.Tensor]) -> list[Weight]:
        """Note tensors: each takes the place of a weight that is gone, or is a new one."""
        gone = [weight for weight in self._weights if weight.is_gone]
        samples = {*map(id, sorted(tensors, key=torch.numel)[:_SAMPLED_WEIGHTS])}
        taken = []
        for tensor in tensors:
            weight = next((each for each in gone if each.shape == tensor.shape), None)
            if weight is None:
                is_sampled = self._compares_values and id(tensor) in samples
                weight = Weight(tensor, samples=is_sampled)
                self._weights.append(weight)
            else:
                gone.remove(weight)
                weight.bind(tensor)
            taken.append(weight)
        return taken

    def _take_inputs(self, inputs: Any) -> None:
        """Note the inputs of `torch.autograd.grad`; others in their place are an update."""
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        tensors = [unwrapped(each) for each in inputs]
        shapes = tuple(each.shape for each in tensors)
        weights = self._inputs.get(shapes)
        if weights is None:
            if len(self._inputs) >= _MOST_INPUTS:
                self._inputs.clear()
                self._weights.clear()
            self._inputs[shapes] = self._take_new(tensors)
            return
        others = [
            (weight, tensor)
            for weight, tensor in zip(weights, tensors, strict=True)
            if weight.tensor is not tensor
        ]
        replaced = {
            weight
            for weight, tensor in others
            if weight.is_marked(tensor) or weight.has_other_values(tensor)
        }
        if replaced and self._has_pass:
            self._record(replaced)
        for weight, tensor in others:
            weight.bind(tensor)

    # updates

    def look(self, *, at_end: bool = False) -> None:
        """Record an update if weights have changed since the last backward pass.

        At the end of the script all weights may be gone. That is an update only if no look has come
        after the backward pass.
        """
        if not self._has_pass:
            return
        if self._state.steps != self._steps:  # an optimiser made before the hooks has stepped
            self.stop()
            return
        begin_ns = now_ns()
        try:
            changed = self._changed(ignores_gone=at_end and self._has_looked)
            self._has_looked = True
            if not changed and self._calls_backward:
                self._place = self._recorded()
        except Exception:
            self.stop()
            return
        finally:
            self._state.inferring_ns += now_ns() - begin_ns
        if changed:
            self._record(changed, at_end=at_end)

    def _changed(self, *, ignores_gone: bool) -> set[Weight]:
        found = [(weight, weight.tensor) for weight in self._weights]
        changed = {
            weight
            for weight, tensor in found
            if (weight.is_gone and not ignores_gone if tensor is None else weight.is_marked(tensor))
        }
        if changed and self._compares_values:
            self._compares_values = False
            for weight in self._weights:
                weight.samples = False
        elif self._compares_values:
            changed = {
                weight
                for weight, tensor in found
                if tensor is not None and weight.has_other_values(tensor)
            }
        return changed

    def _record(self, changed: set[Weight], *, at_end: bool = False) -> None:
        """Record an update of these weights, and count it as the optimisers' hook does."""
        state, fields = self._state, self._state.buffer.fields
        for weight in changed:
            tensor = weight.tensor
            if tensor is not None:
                weight.renew(tensor)
        self._has_pass = False
        updater, before = self._updater_of(changed), state.updated_by
        is_first = not before or updater in before
        if is_first and state.steps - state.steps_at_fetch > STEPS_OF_ONE_FETCH:
            state.at_boundary()
        now, at = now_ns(), self._first_boundary()
        time_ns, queue = now, state.buffer.queue
        mark = queue and queue.mark()
        if at < len(fields):
            time_ns, mark = fields[at + 1], fields[at + 4]
        elif at_end and fields:
            time_ns = fields[-4]
        other_ns = other_clock_ns() - (now - time_ns)
        begin = (e.STEP, time_ns, updater, None, mark)
        fields[at:at] = (*begin, e.STEPPED, time_ns, updater, other_ns, mark)
        state.inferred_updates += 1
        state.steps += is_first
        self._steps += is_first
        state.updated_by = (updater,) if is_first else (*before, updater)
        if state.at_step_end is not None:
            state.at_step_end()

    def _updater_of(self, changed: set[Weight]) -> int:
        """Return a number for whatever updates these weights; no optimiser's id is negative."""
        for number, weights in enumerate(self._updaters, start=1):
            if weights & changed:
                weights |= changed
                return -number
        self._updaters.append(set(changed))
        return -len(self._updaters)

    def _recorded(self) -> int:
        """Return the number of fields recorded so far."""
        return self._state.buffer.flushed + len(self._state.buffer.fields)

    def _first_boundary(self) -> int:
        """Return where in the recorded fields a fetch or another boundary came after the pass."""
        fields = self._state.buffer.fields
        begin = max(0, self._place - self._state.buffer.flushed)
        places = range(begin, len(fields), len(e.FIELDS))
        return next((at for at in places if fields[at] in _BOUNDARIES), len(fields))


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the script's own tensor inside those of `torch.func`."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _is_outermost(creates_graph: bool) -> bool:
    """Return whether a call of `torch.autograd.grad` computes the gradients of a step.

    Others are part of a loss: a gradient penalty, a derivative by the input.
    """
    transforms = torch._C._functorch.get_interpreter_stack() or []
    kinds = [transform.key() for transform in transforms]
    gradients = kinds.count(torch._C._functorch.TransformType.Grad)
    return gradients == 1 if gradients else not creates_graph


def _leaves(roots: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the leaves of a graph that get gradients."""
    nodes = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)

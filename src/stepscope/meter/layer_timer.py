"""Time per layer: a short window with hooks on every module of a network.

Hooks before and after each call pass the time from layer to layer, so a layer's forward time
excludes its children. The backward pass is divided at the nodes of the autograd graph, which belong
to the module whose call created them. The graph is not changed; a full backward hook would insert
nodes and forbids an in-place ReLU. A recomputed call is backward time of its module.

Limitations: a node created outside every module after the first of them ran, or by a backward pass
(`create_graph`), counts with the layer whose node ran before. Modules inside the result of
`torch.compile`, or scripted, are not seen; their time belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from stepscope.meter.clock import now_ns, seconds
from stepscope.meter.device_timeline import DeviceQueue
from stepscope.models.multiply_adds import multiply_adds, tensors_in
from stepscope.records.types import LayerTime

_FORWARD, _BACKWARD = range(2)
_NO_TASK = -1  # torch's id of the current backward pass, if there is none

# The owner of time: the number of a layer and one of the two passes, or None.
_Owner = tuple[int, int] | None


@dataclass(slots=True)
class _Layer:
    name: str
    module: nn.Module
    calls: int = 0
    multiply_adds: int | None = 0
    size_bytes: int = 0


class _Call(NamedTuple):
    """An open call, and the owner of the time before it."""

    layer: int
    phase: int
    outer: _Owner


class LayerWindow:
    """Hooks on every module below some roots, named by a prefix, while the window is open."""

    def __init__(
        self, modules: Iterable[tuple[str, nn.Module]], queue: DeviceQueue | None = None
    ) -> None:
        found: dict[int, _Layer] = {}
        for prefix, root in modules:
            _find_layers(prefix, root, found)
        self._layers = list(found.values())
        self._stamp: Callable[[], Any] = now_ns if queue is None else queue.mark
        self._on_device = queue is not None
        self.failure: str | None = None  # why a hook failed: then nothing is timed any more
        self._is_open = False
        self._handles: list[Any] = []
        self._calls: list[_Call] = []
        self._passes: dict[int, _Owner] = {}
        self._turns: list[tuple[Any, _Owner]] = []
        self._running: _Owner = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to an empty window: hooks in a copied or saved network do nothing."""
        return LayerWindow, ((),)

    def open(self) -> None:
        """Install the hooks."""
        self._is_open = True
        try:
            for number, layer in enumerate(self._layers):
                enter = partial(self._guarded, self._enter, number)
                leave = partial(self._guarded, self._leave, number)
                self._handles.append(
                    layer.module.register_forward_pre_hook(enter, with_kwargs=True)
                )
                # Also after an error: recomputation ends with one when it has all that it needs.
                self._handles.append(
                    layer.module.register_forward_hook(leave, with_kwargs=True, always_call=True)
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the hooks. Those on nodes of a live graph do nothing from here on."""
        if self._is_open:
            self._turn(None)
        self._is_open = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._calls.clear()
        self._passes.clear()

    def layers(self, steps: int) -> list[LayerTime]:
        """Return the means per step of each layer that was called, the slowest first. Waits."""
        spent_s = [[0.0, 0.0] for _ in self._layers]
        # While a CUDA graph is captured there are no marks.
        turns = [turn for turn in self._turns if turn[0] is not None]
        if self._on_device and turns:
            turns[-1][0].wait()
        for (begin, owner), (end, _) in pairwise(turns):
            if owner is not None:
                took_s = begin.seconds_until(end) if self._on_device else seconds(end - begin)
                spent_s[owner[0]][owner[1]] += took_s
        rows: list[LayerTime] = [
            {
                "name": layer.name,
                "kind": type(layer.module).__name__,
                "calls": _a_step(layer.calls, steps),
                "forward_s": spent_s[number][_FORWARD] / steps,
                "backward_s": spent_s[number][_BACKWARD] / steps,
                "multiply_adds": None
                if layer.multiply_adds is None
                else _a_step(layer.multiply_adds, steps),
                "bytes": _a_step(layer.size_bytes, steps),
            }
            for number, layer in enumerate(self._layers)
            if layer.calls
        ]
        return sorted(rows, key=lambda row: row["forward_s"] + row["backward_s"], reverse=True)

    def _turn(self, owner: _Owner) -> None:
        """Assign the time from here on to an owner. Times are added up at the end."""
        self._turns.append((self._stamp(), owner))
        self._running = owner

    def _guarded(self, hook: Callable[..., None], *args: Any) -> None:
        """Call a hook. An error ends the timing, and is not raised in the training."""
        if self.failure is not None:
            return
        try:
            hook(*args)
        except Exception as error:
            self.failure = f"a hook failed: {type(error).__name__}: {error}"

    def _enter(
        self, number: int, module: nn.Module, args: tuple[object, ...], named: object
    ) -> None:
        if not self._is_open or torch.compiler.is_compiling():
            return
        outer = self._running
        self._turn(None)
        in_backward = torch._C._current_graph_task_id() != _NO_TASK
        if not in_backward and not self._calls:
            outer = None  # a failed earlier pass may have left an owner
        caller = (self._calls[-1].layer, _BACKWARD) if self._calls else None
        self._claim((args, named), caller)
        phase = _BACKWARD if in_backward else _FORWARD
        self._calls.append(_Call(number, phase, outer))
        self._turn((number, phase))

    def _leave(
        self,
        number: int,
        module: nn.Module,
        args: tuple[object, ...],
        named: object,
        output: Any,
    ) -> None:
        if not self._is_open or torch.compiler.is_compiling():
            return
        self._turn(None)
        outer: _Owner = None
        while self._calls:
            call = self._calls.pop()
            if call.layer == number:
                outer = call.outer
                if call.phase == _FORWARD:
                    _count(self._layers[number], module, (args, named), output)
                break
        self._claim(output, (number, _BACKWARD))
        self._turn(outer)

    def _claim(self, values: Any, owner: _Owner) -> None:
        """Assign the nodes behind some tensors to an owner, unless they have one.

        The mark is in the node, so that no graph lives longer. Nodes that accumulate gradients may
        outlive the graph and have no hook.
        """
        ahead = [tensor.grad_fn for tensor in tensors_in(values)]
        while ahead:
            node = ahead.pop()
            if node is None or node.name().endswith("AccumulateGrad"):
                continue
            marks: Any = node.metadata
            if self in marks:
                continue
            marks[self] = True
            node.register_prehook(partial(self._guarded, self._node_begins, owner))
            ahead += [before for before, _ in node.next_functions]

    def _node_begins(self, owner: _Owner, gradients: object) -> None:
        if not self._is_open:
            return
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass not in self._passes:
            # A nested backward pass returns the time to the outer one.
            self._passes[backward_pass] = self._running
            end = partial(self._guarded, self._backward_ends, backward_pass)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        self._turn(owner)

    def _backward_ends(self, backward_pass: int) -> None:
        if self._is_open:
            self._turn(self._passes.pop(backward_pass, None))


def _find_layers(name: str, module: nn.Module, found: dict[int, _Layer]) -> None:
    """Find a module and those below it, unless torch compiles them: those refuse hooks."""
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    if id(module) in found or in_place or isinstance(module, torch.jit.ScriptModule):
        return
    found[id(module)] = _Layer(name or f"({type(module).__name__})", module)
    for below, child in module.named_children():
        if below != "_orig_mod":
            _find_layers(f"{name}.{below}" if name else below, child, found)


def _a_step(total: int, steps: int) -> int | float:
    return total // steps if total % steps == 0 else total / steps


def _count(layer: _Layer, module: nn.Module, inputs: Any, output: Any) -> None:
    """Add one call to the totals of a layer."""
    # The weights of an attention's projections are in children that it never calls.
    own = module.parameters(recurse=isinstance(module, nn.MultiheadAttention))
    moved = (*tensors_in(inputs), *tensors_in(output), *own)
    layer.calls += 1
    layer.size_bytes += sum(tensor.numel() * tensor.element_size() for tensor in moved)
    found = multiply_adds(module, inputs, output)
    if found is None or layer.multiply_adds is None:
        layer.multiply_adds = None
    else:
        layer.multiply_adds += found

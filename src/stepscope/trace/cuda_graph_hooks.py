"""Hooks on CUDA graphs: their capture is no work, and a replay may be an update.

What is called while a graph is captured does not run, so nothing of it is recorded. A replay of a
graph that holds an optimiser's step is recorded as that step.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from stepscope.meter.device_timeline import capture_begins, capture_ends
from stepscope.trace.optimizer_hooks import update_hook

if TYPE_CHECKING:
    from stepscope.trace.event_buffer import HookState
    from stepscope.trace.patches import Patches

UNSEEN_REPLAYS = (
    "the script replays CUDA graphs that it captured without an optimiser's step, or before it "
    "was traced: no hook runs inside a replay"
)


def watch_graphs(state: HookState, patches: Patches) -> None:
    """Install the hooks. For a script that has a model on a CUDA device."""
    updates: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    before: list[tuple[bool, bool]] = []

    def begin(original: Any) -> Any:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            capture_begins(graph)
            try:
                begun = original(graph, *args, **kwargs)
            except BaseException:
                capture_ends(graph)
                raise
            before.append((state.busy, state.in_backward))
            state.busy = state.in_backward = True  # hooks of calls and backward passes do nothing
            state.captured = []
            return begun

        return functools.wraps(original)(capture_begin)

    def end(original: Any) -> Any:
        def capture_end(graph: Any) -> Any:
            try:
                return original(graph)
            finally:
                capture_ends(graph)
                if before:
                    state.busy, state.in_backward = before.pop()
                if state.captured:
                    updates[graph] = state.captured[0]
                state.captured = None

        return functools.wraps(original)(capture_end)

    def replay(original: Any) -> Any:
        def replay_graph(graph: Any) -> Any:
            updated = updates.get(graph)
            optimizer = None if updated is None else updated()
            if optimizer is None:
                state.unseen_replays += 1
                return original(graph)
            return update_hook(state, lambda _: original(graph))(optimizer)

        return functools.wraps(original)(replay_graph)

    for name, hook in (("capture_begin", begin), ("capture_end", end), ("replay", replay)):
        patches.replace(torch.cuda.CUDAGraph, name, hook)

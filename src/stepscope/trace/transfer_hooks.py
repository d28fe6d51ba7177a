"""Hook on `Tensor.to`: records when a batch goes to the device.

A move of a CPU tensor is recorded unless it stays as it is. A script that trains on the CPU still
requests moves, twice a step. After many moves without effect during training, and none with one,
the hook is removed.
"""

from __future__ import annotations

import functools
from threading import get_ident
from typing import Any

import torch
from torch.compiler import is_compiling

from stepscope.meter.clock import now_ns
from stepscope.trace import event_buffer as e
from stepscope.trace.event_buffer import HookState
from stepscope.trace.patches import Patches


def watch_transfers(state: HookState, patches: Patches) -> None:
    """Install the hook, and let others install it again once a device is found."""
    to = functools.partial(_to, state, patches)
    state.watch_moves = lambda: patches.replace(torch.Tensor, "to", to)
    if state.idle_moves_left != 0:
        state.watch_moves()


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

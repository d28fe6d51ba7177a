"""Hooks that measure how long backward passes only wait for the gradient allreduce.

DistributedDataParallel records when each gradient was ready, counted from the moment its reducer
was prepared for the backward pass. The hooks read this after each backward pass. They register
nothing: the script's communication hook, if any, stays in place. The time from the last gradient to
the end of the pass is communication, and waiting for other ranks, that no computation hides.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch import distributed

from stepscope.meter.clock import now_ns
from stepscope.trace.detect.row_builder import CommunicationTime

if TYPE_CHECKING:
    from stepscope.trace.event_buffer import HookState
    from stepscope.trace.patches import Patches

ON_DEVICE = (
    "not measured on a device: DistributedDataParallel would have to wait for it to tell when a "
    "gradient is ready"
)
NOTHING_READ = "DistributedDataParallel was used, but no fully recorded step had an allreduce"


@dataclass(slots=True)
class AllreduceWatch:
    """The reducers that await a backward pass, and the communication time of unfinished steps.

    `prepared` has each reducer by id, when it was prepared, and its statistics of the previous
    pass. `own_ns` is the time spent on reading them.
    """

    prepared: dict[int, tuple[weakref.ref[Any], int, list[int]]] = field(default_factory=dict)
    seen: bool = False
    read: bool = False
    on_device: bool = False
    own_ns: int = 0
    communication: CommunicationTime = field(default_factory=CommunicationTime)

    @property
    def reason(self) -> str | None:
        """Why communication time is missing; None if it is not, or there was no allreduce."""
        if not self.seen or self.read:
            return None
        return ON_DEVICE if self.on_device else NOTHING_READ

    def backward_done(self, end_ns: int) -> None:
        """Read which gradients became ready in the backward pass that has just ended."""
        try:
            self._read(end_ns)
        except Exception:  # torch's own statistics: the script goes on without them
            self.prepared.clear()
        self.own_ns += now_ns() - end_ns

    def _read(self, end_ns: int) -> None:
        ready_ns = 0
        for identity, (reference, at_ns, before) in list(self.prepared.items()):
            reducer = reference()
            after = before if reducer is None else reducer.get_backward_stats()
            # Unchanged entries are from an earlier pass: this one used other parameters.
            news = [now for now, then in zip(after, before, strict=True) if now != then]
            if news:
                ready_ns = max(ready_ns, at_ns + max(news))
            if news or reducer is None:
                del self.prepared[identity]
        if ready_ns:
            self.read = True
            # Two clocks, read a microsecond apart: the difference may be negative.
            self.communication.add(end_ns, max(0, end_ns - ready_ns))


def watch_allreduce(state: HookState, patches: Patches) -> None:
    """Hook the preparation of a reducer for a backward pass with an allreduce."""
    if not distributed.is_available():
        return
    from torch._C._distributed_c10d import Reducer

    allreduce = state.allreduce

    def prepare(original: Any) -> Any:
        def prepare_for_backward(reducer: Any, outputs: Any) -> None:
            original(reducer, outputs)
            if not state.full or get_ident() != state.thread:
                return
            allreduce.seen = True
            if state.buffer.queue is not None:
                allreduce.on_device = True
                return
            at_ns = now_ns()
            known = reducer.get_backward_stats()
            allreduce.prepared[id(reducer)] = (weakref.ref(reducer), at_ns, known)
            allreduce.own_ns += now_ns() - at_ns

        return prepare_for_backward

    patches.replace(Reducer, "prepare_for_backward", prepare)

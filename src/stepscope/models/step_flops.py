"""The work of a training step: operations counted, and bytes moved as far as tensors tell.

**Operations** are floating-point ones of matrix products, convolutions and attention, as torch's
`FlopCounterMode` counts them from shapes: a multiply and an add are two. What goes element by
element (activations, norms, the optimiser) is not counted, as everywhere in the field. Where
activations are recomputed, the second forward pass is in the backward's count: it is done.

**Bytes** are an estimate, as if no cache held anything from one operation to the next, and every
tensor were written once and read once:

    forward     weights and batch are read; every tensor made is written and read
    backward    weights and kept activations are read; every temporary is written and read;
                gradients are written

Operations that work in place make no tensor and are missed; a cache that holds a tensor makes the
real traffic less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from stepscope.models.multiply_adds import multiply_adds_of_operation
from stepscope.models.step_tensors import FORWARD, NO_OPTIMIZER, Mark, StepLog, add_up, watch_step

_MOST_NAMES = 5  # in one sentence


@dataclass(frozen=True)
class PhaseWork:
    """What a phase computes, and by estimate what it moves if no cache helps."""

    flop: int
    moved_bytes: int


@dataclass(frozen=True)
class StepWork:
    """The work of a step."""

    forward: PhaseWork
    backward: PhaseWork


class NotCounted(Exception):  # noqa: N818 - it is no error: such a network has no count
    """The network does something whose operations nobody has written down."""


def count_work(
    step: Callable[[Mark], object],
    parameters: Iterable[torch.Tensor],
    batch: Iterable[torch.Tensor],
) -> StepWork:
    """Run a step once and count its work.

    Raises:
        NotCounted: it runs operations that multiply in a way that is unknown.
    """
    unknown = _Unknown()
    counter = FlopCounterMode(display=False, custom_mapping=_BESIDE_TORCH_S_TABLE)
    flop_by_phase: dict[str, int] = {}

    def counted(mark: Mark) -> None:
        def mark_and_read(phase: str) -> None:
            flop_by_phase[phase] = counter.get_total_flops()
            mark(phase)

        with unknown, counter:
            step(mark_and_read)

    log = watch_step(counted, parameters, batch, batch_size=0)
    if unknown.names:
        raise NotCounted(_listed(sorted(unknown.names)))
    forward_flop = flop_by_phase[FORWARD]
    forward_bytes, backward_bytes = _traffic(log)
    return StepWork(
        PhaseWork(forward_flop, forward_bytes),
        PhaseWork(counter.get_total_flops() - forward_flop, backward_bytes),
    )


def _traffic(log: StepLog) -> tuple[int, int]:
    made = {"forward": 0, "backward": 0}
    gradients = 0
    end_of_forward = log.phase_ends[FORWARD]
    for number, event in enumerate(log.events):
        block = log.blocks[abs(event) - 1]
        if event < 0 or block.kind in ("parameters", "batch"):
            continue
        if block.kind == "gradients":
            gradients += block.size_bytes
        else:
            made["forward" if number < end_of_forward else "backward"] += block.size_bytes
    given = {
        kind: sum(block.size_bytes for block in log.blocks if block.kind == kind)
        for kind in ("parameters", "batch")
    }
    kept = add_up(log, NO_OPTIMIZER).kept_bytes
    forward = given["parameters"] + given["batch"] + 2 * made["forward"]
    return forward, given["parameters"] + kept + 2 * made["backward"] + gradients


class _Unknown(TorchDispatchMode):
    """Note the operations that multiply in a way that is not written down."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if multiply_adds_of_operation(func, args, made) is None:
            self.names.add(str(func._schema.name))
        return made


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _convolution_backward(*given: Any, **named: Any) -> int:
    """Count what is done again for the gradient of the input, and of the kernels, where wanted.

    Torch's own formula takes a grouped convolution for a full one: the backward pass of
    MobileNetV2 would come out 20 times as large as its forward pass.
    """
    made, taken, kernels, transposed, wanted = (given[at] for at in (0, 1, 2, 7, 10))
    done: int = 2 * prod(taken if transposed else made) * prod(kernels[1:]) * sum(wanted[:2])
    return done


# What `FlopCounterMode` leaves out or counts otherwise, by shapes as it counts the others.
_aten: Any = torch.ops.aten
_BESIDE_TORCH_S_TABLE: dict[Any, Callable[..., int]] = {
    _aten.convolution_backward: _convolution_backward,
    _aten.mv: lambda matrix, *_, **__: 2 * prod(matrix),
    _aten.addmv: lambda added, matrix, *_, **__: 2 * prod(matrix),
    _aten.dot: lambda left, *_, **__: 2 * prod(left),
    _aten.vdot: lambda left, *_, **__: 2 * prod(left),
    _aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda made, query, key, value, *_, **__: sdpa_backward_flop_count(made, query, key, value)
    ),
}

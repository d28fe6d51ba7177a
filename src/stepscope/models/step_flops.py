"""The work of a training step: floating-point operations, and an estimate of the bytes moved.

torch's `FlopCounterMode` counts matrix products, convolutions and attention from shapes; a
multiply-add is two operations. Bytes assume that no cache holds a tensor between two operations:
the forward pass reads weights and batch, the backward pass weights and kept activations; both write
and read every new tensor. In-place operations are missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

from stepscope.models.multiply_adds import first_names, multiply_adds_of_operation
from stepscope.models.step_tensors import FORWARD, NO_OPTIMIZER, Mark, StepLog, add_up, record_step


@dataclass(frozen=True)
class PhaseWork:
    """The operations of a phase, and its estimated memory traffic without caches."""

    flop: int
    moved_bytes: int


@dataclass(frozen=True)
class StepWork:
    """The work of a step, by phase."""

    forward: PhaseWork
    backward: PhaseWork


class NotCounted(Exception):  # noqa: N818 - it is no error: such a network has no count
    """The network runs operations whose cost is unknown; the message names them."""


def count_work(
    step: Callable[[Mark], object],
    parameters: Iterable[torch.Tensor],
    batch: Iterable[torch.Tensor],
) -> StepWork:
    """Run a step once and count its work; raise `NotCounted` if some operations are unknown."""
    unknown = _Unknown()
    counter = FlopCounterMode(display=False, custom_mapping=_BESIDE_TORCH_S_TABLE)
    flop_by_phase: dict[str, int] = {}

    def counted(mark: Mark) -> None:
        def mark_and_read(phase: str) -> None:
            flop_by_phase[phase] = counter.get_total_flops()
            mark(phase)

        with unknown, counter:
            step(mark_and_read)

    log = record_step(counted, parameters, batch, batch_size=0)
    if unknown.names:
        raise NotCounted(first_names(sorted(unknown.names)))
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
    """Record the names of operations whose cost is unknown."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if multiply_adds_of_operation(func, args, made) is None:
            self.names.add(str(func._schema.name))
        return made


def _convolution_backward(*given: Any, **named: Any) -> int:
    """Count the gradients of input and kernels, by group, which torch's formula ignores."""
    made, taken, kernels, transposed, wanted = (given[at] for at in (0, 1, 2, 7, 10))
    done: int = 2 * prod(taken if transposed else made) * prod(kernels[1:]) * sum(wanted[:2])
    return done


# Operations that `FlopCounterMode` lacks or counts differently, by shapes.
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


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Return the operations of a call, given its arguments and `out_val`, by torch operation."""
    counter = FlopCounterMode(display=False, custom_mapping=_BESIDE_TORCH_S_TABLE)
    return dict(counter.flop_registry)

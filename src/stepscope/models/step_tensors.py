"""The tensors of a training step: when each is allocated and freed, and its size at any batch.

A step is recorded with two small batch sizes. Both allocate the same blocks of memory in the same
order, and the size of a block at another batch size is extrapolated linearly. Only torch's tensors
are counted, not the workspace of a library or the reserve of an allocator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from stepscope.records.types import PhaseBytes

Kind = Literal["parameters", "batch", "activations", "gradients", "temporaries"]
KINDS: tuple[Kind, ...] = ("parameters", "batch", "activations", "gradients", "temporaries")

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

# Called by a step at the end of each of its phases.
Mark = Callable[[str], None]


@dataclass(frozen=True)
class Block:
    """A block of memory: its purpose and size."""

    kind: Kind
    size_bytes: int


@dataclass(frozen=True)
class StepLog:
    """The blocks of a step, in the order of their allocation.

    An event is the number of a block, counted from 1, negative when it is freed. `phase_ends` is
    the number of events up to the end of a phase.
    """

    batch_size: int
    blocks: tuple[Block, ...]
    events: tuple[int, ...]
    phase_ends: Mapping[str, int]


@dataclass(frozen=True)
class StepMemory:
    """The memory of a step's tensors: its peak by kind, and what is kept for the backward pass."""

    batch_size: int
    peak_bytes: int
    peak_phase: str
    at_peak: Mapping[str, int]
    kept_bytes: int
    phases: Mapping[str, PhaseBytes]


@dataclass(frozen=True)
class OptimizerMemory:
    """The memory of an optimiser, as a multiple of the parameters: its state, and temporaries.

    Temporaries are those of the largest parameter, or of all parameters if it steps `all_at_once`.
    """

    state: float
    temporary: float
    all_at_once: bool = False

    def temporary_bytes(self, parameters: Iterable[int]) -> int:
        """Return the size of the temporaries for parameters of these sizes."""
        of = sum(parameters) if self.all_at_once else max(parameters, default=0)
        return round(of * self.temporary)


NO_OPTIMIZER = OptimizerMemory(0.0, 0.0)


class UnlikeSteps(Exception):  # noqa: N818 - it is no error: such a network is counted otherwise
    """Two steps that differ only in the batch size allocated different blocks."""


def record_step(
    step: Callable[[Mark], object],
    parameters: Iterable[torch.Tensor],
    batch: Iterable[torch.Tensor],
    batch_size: int,
) -> StepLog:
    """Run a step, and record every allocation and release of a tensor; buffers are parameters."""
    parameters = list(parameters)
    ledger = _Ledger()
    for tensor in parameters:
        ledger.note(tensor, "parameters")
    for tensor in batch:
        ledger.note(tensor, "batch")
    ends: dict[str, int] = {}

    def mark(phase: str) -> None:
        ends[phase] = len(ledger.events)
        ledger.making = "temporaries"  # after the forward pass, besides gradients

    ledger.making = "activations"
    with ledger:
        step(mark)
    for parameter in parameters:
        if parameter.is_leaf and parameter.grad is not None:
            ledger.is_a(parameter.grad, "gradients")
    blocks = tuple(Block(kind, size) for kind, size in zip(ledger.kinds, ledger.sizes, strict=True))
    ledger.closed = True
    return StepLog(batch_size, blocks, tuple(ledger.events), ends)


class _Ledger(TorchDispatchMode):
    """Record the allocation and release of every block of memory that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kinds: list[Kind] = []
        self.sizes: list[int] = []
        self.events: list[int] = []
        self.making: Kind = "temporaries"
        self.closed = False
        self._numbers: dict[int, int] = {}

    def note(self, tensor: torch.Tensor, kind: Kind) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        self.kinds.append(kind)
        self.sizes.append(storage.nbytes())
        self._numbers[key] = len(self.sizes)
        self.events.append(len(self.sizes))
        weakref.finalize(storage, self._gone, key)

    def is_a(self, tensor: torch.Tensor, kind: Kind) -> None:
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is not None and self.kinds[number - 1] == "temporaries":
            self.kinds[number - 1] = kind

    def _gone(self, key: int) -> None:
        number = self._numbers.pop(key)
        if not self.closed:
            self.events.append(-number)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_iter(made):
            if isinstance(value, torch.Tensor):
                self.note(value, self.making)
        return made


def at_batch(small: StepLog, large: StepLog, batch_size: int) -> StepLog:
    """Return the log of the same step with another batch size, or raise `UnlikeSteps`."""
    alike = small.events == large.events and [block.kind for block in small.blocks] == [
        block.kind for block in large.blocks
    ]
    if not alike:
        raise UnlikeSteps
    more = large.batch_size - small.batch_size
    blocks = tuple(
        replace(
            first,
            size_bytes=first.size_bytes
            + (second.size_bytes - first.size_bytes) * (batch_size - small.batch_size) // more,
        )
        for first, second in zip(small.blocks, large.blocks, strict=True)
    )
    return replace(small, batch_size=batch_size, blocks=blocks)


def add_up(log: StepLog, optimizer: OptimizerMemory) -> StepMemory:
    """Return the memory of a step: its peak and its phases."""
    trained = trained_bytes(log)
    state_bytes = round(sum(trained) * optimizer.state)
    alive: dict[str, int] = dict.fromkeys(KINDS, 0)
    now = peak = 0
    peak_phase, at_peak, kept = FORWARD, dict(alive), 0
    phases: dict[str, PhaseBytes] = {}
    ends = {end: phase for phase, end in log.phase_ends.items()}
    phase, phase_peak = FORWARD, 0
    for number, event in enumerate(log.events, 1):
        block = log.blocks[abs(event) - 1]
        change = block.size_bytes if event > 0 else -block.size_bytes
        alive[block.kind] += change
        now += change
        phase_peak = max(phase_peak, now)
        if now > peak:
            peak, peak_phase, at_peak = now, phase, dict(alive)
        if number in ends:
            ended = ends[number]
            phases[ended] = PhaseBytes(
                peak_bytes=phase_peak + state_bytes, end_bytes=now + state_bytes
            )
            if ended == FORWARD:
                kept = alive["activations"]
            phase, phase_peak = BACKWARD, now
    stepping = now + optimizer.temporary_bytes(trained)
    after = now - alive["gradients"]
    phases[OPTIMIZER] = PhaseBytes(peak_bytes=stepping + state_bytes, end_bytes=after + state_bytes)
    if stepping > peak:
        temporaries = alive["temporaries"] + stepping - now
        peak, peak_phase, at_peak = stepping, OPTIMIZER, {**alive, "temporaries": temporaries}
    return StepMemory(log.batch_size, peak + state_bytes, peak_phase, at_peak, kept, phases)


def trained_bytes(log: StepLog) -> list[int]:
    """Return the sizes of the parameters that have gradients."""
    return [block.size_bytes for block in log.blocks if block.kind == "gradients"]


def measure_optimizer(
    make: Callable[[list[nn.Parameter]], optim.Optimizer],
    device: torch.device | None = None,
    *,
    all_at_once: bool = False,
) -> OptimizerMemory:
    """Measure the memory of an optimiser with a single parameter.

    On a GPU torch steps all parameters at once (`foreach`); on a CPU one after the other.
    """
    elements = 16384
    parameter = nn.Parameter(torch.zeros(elements, device=device))
    parameter.grad = torch.zeros(elements, device=device)
    size_bytes = parameter.untyped_storage().nbytes()
    optimizer = make([parameter])
    optimizer.step()  # the first step allocates the state
    state = [
        value
        for value in tree_iter(optimizer.state_dict()["state"])
        if isinstance(value, torch.Tensor)
    ]
    held = sum(value.untyped_storage().nbytes() for value in state if value.numel() == elements)
    known = [parameter, parameter.grad, *state]
    stepped = add_up(record_step(lambda mark: optimizer.step(), known, (), 1), NO_OPTIMIZER)
    temporary = stepped.peak_bytes - stepped.at_peak["parameters"]
    return OptimizerMemory(held / size_bytes, round(temporary / size_bytes, 1), all_at_once)

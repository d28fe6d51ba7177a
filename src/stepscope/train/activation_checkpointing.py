"""Recompute activations in the backward pass instead of keeping them.

Every block of the network (a composite child of an `nn.Sequential` or `nn.ModuleList`) keeps only
its input. The running statistics of batch norm are frozen during the second forward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_activations(model: nn.Module) -> int:
    """Wrap the forward of every block in place; return the number of blocks."""
    blocks = list(dict.fromkeys(_blocks(model)))  # a shared block counts once
    for block in blocks:
        block.forward = functools.partial(_run, block, block.forward)
    return len(blocks)


@contextlib.contextmanager
def recomputing(model: nn.Module) -> Iterator[int]:
    """Recompute activations inside the context; yield the number of blocks."""
    own = {block: vars(block).get("forward") for block in _blocks(model)}
    try:
        yield recompute_activations(model)
    finally:
        for block, forward in own.items():
            if forward is None:
                vars(block).pop("forward", None)
            else:
                block.forward = forward


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost composite modules of a sequence of modules."""
    for child in model.children():
        if isinstance(model, (nn.Sequential, nn.ModuleList)) and any(child.children()):
            yield child
        else:
            yield from _blocks(child)


def _run(block: nn.Module, forward: Any, *args: Any, **named: Any) -> Any:
    if not block.training:
        return forward(*args, **named)
    return checkpoint(
        forward,
        *args,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _frozen_running_statistics(block)),
        **named,
    )


@contextlib.contextmanager
def _frozen_running_statistics(block: nn.Module) -> Iterator[None]:
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # keeps the running statistics bit for bit
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked = norm.num_batches_tracked.clone()
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches

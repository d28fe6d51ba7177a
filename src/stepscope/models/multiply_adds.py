"""The multiply-adds of a layer or an operation, from the shapes of a call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.rnn import RNNBase, RNNCellBase

_DEEPEST = 8  # the maximum nesting of tensors in arguments and outputs
_MOST_NAMES = 5  # in one sentence


def multiply_adds(module: nn.Module, inputs: Any, output: Any) -> int | None:
    """Return the multiply-adds of a forward call, without its children; None if unknown.

    Only products with a matrix or a kernel count. torch's other layers have none; other classes are
    unknown. Shapes never come from weights: reading those of a spectral norm would change them.
    """
    taken, made = next(tensors_in(inputs), None), next(tensors_in(output), None)
    if taken is None or made is None:
        return None
    if isinstance(module, _ConvTransposeNd):
        return taken.numel() * (module.out_channels // module.groups) * prod(module.kernel_size)
    if isinstance(module, _ConvNd):
        return made.numel() * (module.in_channels // module.groups) * prod(module.kernel_size)
    if isinstance(module, nn.Linear):
        return made.numel() * module.in_features
    if isinstance(module, RNNBase):
        return taken.numel() // module.input_size * _of_a_time_step(module)
    if isinstance(module, RNNCellBase):
        gates = 4 if isinstance(module, nn.LSTMCell) else 3 if isinstance(module, nn.GRUCell) else 1
        taken_and_fed_back = module.input_size + module.hidden_size
        return taken.numel() // module.input_size * gates * module.hidden_size * taken_and_fed_back
    if isinstance(module, nn.MultiheadAttention):
        return _of_attention(module, *inputs)
    where = type(module).__module__
    has_none = where.startswith("torch.nn.modules.") and not where.endswith(".transformer")
    return 0 if has_none and not isinstance(module, nn.Bilinear) else None


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or outputs: in lists, mappings and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    inside: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple | set):
        inside = value
    elif is_dataclass(value):
        inside = [getattr(value, each.name, None) for each in fields(value)]
    if depth < _DEEPEST:
        for each in inside:
            yield from tensors_in(each, depth + 1)


def _of_a_time_step(module: RNNBase) -> int:
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    directions = 2 if module.bidirectional else 1
    fed_back = module.proj_size or module.hidden_size
    total = 0
    for layer in range(module.num_layers):
        taken = module.input_size if layer == 0 else directions * fed_back
        width = gates * module.hidden_size * (taken + fed_back)
        total += directions * (width + module.hidden_size * module.proj_size)
    return total


def _of_attention(
    module: nn.MultiheadAttention, args: tuple[Any, ...], named: Mapping[str, Any]
) -> int | None:
    """Add up the projections, the scores and their weighted sum."""
    given = dict(zip(("query", "key", "value"), args, strict=False)) | dict(named)
    query, key, value = given["query"], given["key"], given["value"]
    if query.is_nested:
        return None
    queries, width = query.numel() // module.embed_dim, module.embed_dim
    projected = query.numel() + key.numel() + value.numel() + queries * width
    attended = key.shape[1 if module.batch_first and key.dim() == 3 else 0]
    attended += (module.bias_k is not None) + module.add_zero_attn
    return int(width * projected + 2 * queries * attended * width)


def first_names(names: Collection[str]) -> str:
    """Return the first names of a collection, and the number of the others."""
    first, more = list(names)[:_MOST_NAMES], len(names) - _MOST_NAMES
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


# --- operations of torch, for computations outside of layers


# By name, since not every version of torch has every one of them.
_MATRIX_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0}
_MATRIX_PRODUCTS |= {"addmm": 1, "baddbmm": 1, "addmv": 1}  # the first argument is added
_CONVOLUTIONS = frozenset({"convolution", "_convolution"})
_ATTENTIONS = frozenset(
    {
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    }
)
# Operations that multiply, and whose cost is unknown here.
_UNCOUNTED = frozenset({"_trilinear", "_cdist_forward", "addbmm", "conv_tbc", "mkldnn_rnn_layer"})
_UNCOUNTED_FAMILIES = ("linalg_", "_linalg_", "_fft_")
_OF_TORCH = frozenset({"aten", "prim", "prims"})


def convolves(operation: Any) -> bool:
    """Return whether an operation is a convolution."""
    return _name(operation) in _CONVOLUTIONS


def multiply_adds_of_operation(operation: Any, args: Sequence[Any], made: Any) -> int | None:
    """Return the multiply-adds of a call; None if unknown, as for operations of other libraries."""
    name = _name(operation)
    if operation.namespace not in _OF_TORCH or name in _UNCOUNTED:
        return None
    if name.startswith(_UNCOUNTED_FAMILIES):
        return None
    if name in _MATRIX_PRODUCTS:
        first = _MATRIX_PRODUCTS[name]
        left, right = args[first], args[first + 1]
        columns = right.shape[-1] if right.dim() > 1 else 1
        return int(left.numel() * columns)
    if name in _CONVOLUTIONS:
        taken, kernels, transposed = args[0], args[1], args[6]
        return int((taken if transposed else made).numel() * kernels[0].numel())
    if name in _ATTENTIONS:
        query, key, value = args[:3]
        rows = query.numel() // query.shape[-1]
        return int(rows * key.shape[-2] * (query.shape[-1] + value.shape[-1]))
    return 0


def _name(operation: Any) -> str:
    """Return `mm` for `aten::mm.out`."""
    return str(operation._schema.name).partition("::")[2]

"""How often does one operation of torch multiply? For what a network computes outside its layers.

A block may call `F.conv2d`, `@` or `einsum` itself, where no layer of torch stands for it. Torch
takes all of these apart into a few operations, and those have shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
# They multiply, and how often is not written down here.
_UNCOUNTED = frozenset({"_trilinear", "_cdist_forward", "addbmm", "conv_tbc", "mkldnn_rnn_layer"})
_UNCOUNTED_FAMILIES = ("linalg_", "_linalg_", "_fft_")
_OF_TORCH = frozenset({"aten", "prim", "prims"})


def convolves(operation: Any) -> bool:
    """Say whether an operation is a convolution."""
    return _name(operation) in _CONVOLUTIONS


def multiply_adds_of_operation(operation: Any, args: Sequence[Any], made: Any) -> int | None:
    """Count the multiply-adds of one call by its shapes; None where they are unknown.

    As with layers, only products with a matrix or a kernel count: element by element there are
    none. An operation that is not torch's own may do anything, and is unknown.
    """
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
    """Name an operation without its namespace and its variant: `mm` of `aten::mm.out`."""
    return str(operation._schema.name).partition("::")[2]

"""The layers of a network as an accelerator sees them, and the peak memory of its activations.

Shapes come from one forward pass. Convolutions and linear layers are mapped. Layers that cost
nothing in this model (norms, activations, pooling, additions) are counted by kind; others with
weights are listed as not estimated.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.accelerator.layer import Layer
from stepscope.errors import RequestError
from stepscope.models.model_summary import eagerly, in_mode

_BYTES = 4  # the course counts activations as fp32
_ADDITIONS = ("add", "add_")
_ONLY_INPUT = ("Norm", "ReLU", "Sigmoid", "Tanh", "GELU", "SiLU", "Hardswish", "Dropout", "Softmax")


@dataclass(frozen=True)
class NamedLayer:
    """A layer of a network, by its name."""

    name: str
    kind: str
    layer: Layer


@dataclass(frozen=True)
class NetworkShapes:
    """The mapped layers, the peak of activations, free layers by kind, and unknown ones."""

    layers: list[NamedLayer]
    peak_activation_bytes: int
    peak_at: str
    free: Counter[str]
    not_estimated: list[str]


class _ForwardWatch(TorchDispatchMode):
    """Record the calls of modules, and which modules contain a residual addition."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running: list[tuple[str, nn.Module, int]] = []
        self.calls: list[tuple[str, nn.Module, Any, Any, tuple[tuple[str, int], ...]]] = []
        self.residual: set[str] = set()
        self._names = {module: name for name, module in model.named_modules()}

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        name = self._names[module] or "the network"
        self.running.append((name, module, _size(inputs)))

    def end(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        name, _, _ = self.running.pop()
        if not any(module.children()):
            around = tuple((each, size) for each, _, size in self.running)
            self.calls.append((name, module, inputs, output, around))

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.overloadpacket.__name__ in _ADDITIONS and self.running:
            added = [each for each in args[:2] if isinstance(each, torch.Tensor) and each.dim() > 1]
            name, module, _ = self.running[-1]
            if len(added) == 2 and any(module.children()):
                self.residual.add(name)
        return function(*args, **(kwargs or {}))


def shapes_of(model: nn.Module, sample_shape: Sequence[int], name: str) -> NetworkShapes:
    """Run one sample through a network and return the shapes of its layers."""
    sample = torch.rand(1, *sample_shape, generator=torch.Generator().manual_seed(0))
    watch = _ForwardWatch(model)
    try:
        with contextlib.ExitStack() as hooked:
            for module in model.modules():
                hooked.callback(module.register_forward_pre_hook(watch.begin).remove)
                hooked.callback(module.register_forward_hook(watch.end).remove)
            # Batch norm cannot be trained with one sample.
            with in_mode(model, training=False), eagerly(), torch.no_grad(), watch:
                model(sample)
    except Exception as error:
        shape = "x".join(map(str, sample_shape))
        raise RequestError(
            f"model {name} fails on a sample of {shape}: {type(error).__name__}: {error}"
        ) from error
    layers, free, not_estimated = [], Counter[str](), []
    peak_bytes, peak_at = 0, ""
    for where, module, inputs, output, around in watch.calls:
        kind = type(module).__name__
        layer = _layer_of(module, output)
        if layer is not None:
            layers.append(NamedLayer(where, kind, layer))
        elif any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
            not_estimated.append(f"{where} ({kind}) has weights, but its kind is not estimated")
        else:
            free[kind] += 1
        kept = sum(size for block, size in around if block in watch.residual)
        size = _activation_bytes(module, inputs, output) + kept * _BYTES
        if size > peak_bytes:
            peak_bytes, peak_at = size, where
    if not layers:
        raise RequestError(f"model {name} has no convolution and no linear layer to estimate.")
    return NetworkShapes(layers, peak_bytes, peak_at, free, not_estimated)


def _layer_of(module: nn.Module, output: Any) -> Layer | None:
    if isinstance(module, nn.Linear):  # applied to every row of its input
        rows = max(1, output.numel() // module.out_features)
        return Layer(module.in_features, module.out_features, rows)
    if not isinstance(module, nn.Conv2d):
        return None
    rows, columns = map(int, output.shape[-2:])
    kernel_rows, kernel_columns = map(int, module.kernel_size)
    stride, stride_q = map(int, module.stride)
    return Layer(
        *(module.in_channels, module.out_channels, rows, columns, kernel_rows, kernel_columns),
        stride=stride,
        stride_q=None if stride == stride_q else stride_q,
        groups=module.groups,
    )


def _activation_bytes(module: nn.Module, inputs: Any, output: Any) -> int:
    """Return the activations in memory while a layer runs, counted as in the course."""
    taken, made = _size(inputs) * _BYTES, _size((output,)) * _BYTES
    if isinstance(module, nn.Conv2d):
        return taken + made // module.groups
    if any(word in type(module).__name__ for word in _ONLY_INPUT):
        return taken
    return taken + made


def _size(tensors: Any) -> int:
    return sum(each.numel() for each in tensors if isinstance(each, torch.Tensor))

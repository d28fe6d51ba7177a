"""A whole network on an accelerator: its layers, and the most memory that activations take at once.

Shapes come from one real call of the network. Convolutions and linear layers are mapped; what costs
nothing in this model (norms, activations, pooling, additions) is listed by kind, and what cannot be
mapped is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.accelerator.layer import Layer
from stepscope.errors import RequestError
from stepscope.models.model_summary import eagerly

_BYTES = 4  # the course counts activations as fp32
_ADDITIONS = ("add", "add_")
_ONLY_INPUT = ("Norm", "ReLU", "Sigmoid", "Tanh", "GELU", "SiLU", "Hardswish", "Dropout", "Softmax")


@dataclass(frozen=True)
class Placed:
    """A layer of a network, by its name."""

    name: str
    kind: str
    layer: Layer


@dataclass
class Extracted:
    """What a network is made of, for an accelerator."""

    layers: list[Placed] = field(default_factory=list)
    peak_activation_bytes: int = 0
    peak_at: str = ""
    free: Counter[str] = field(default_factory=Counter)
    not_estimated: list[str] = field(default_factory=list)


class _ForwardWatch(TorchDispatchMode):
    """Watch calls of modules: their shapes, and which module adds something to its own input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running: list[tuple[str, nn.Module, int]] = []
        self.calls: list[tuple[str, nn.Module, Any, Any, tuple[tuple[str, int], ...]]] = []
        self.residual: set[str] = set()
        self._names = {module: name for name, module in model.named_modules()}

    def hooks(self, model: nn.Module) -> Iterator[Any]:
        for module in model.modules():
            yield module.register_forward_pre_hook(self._begin)
            yield module.register_forward_hook(self._end)

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        name = self._names[module] or "the network"
        self.running.append((name, module, _size(inputs)))

    def _end(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
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


def extract(model: nn.Module, sample_shape: Sequence[int], name: str) -> Extracted:
    """Send one sample through a network and take it apart.

    Raises:
        RequestError: the network fails on a sample of this shape, or has nothing to estimate.
    """
    watch = _ForwardWatch(model)
    handles = list(watch.hooks(model))
    training = model.training
    model.eval()  # batch norm cannot be trained with one sample
    try:
        with eagerly(), torch.no_grad(), watch:
            model(torch.rand(1, *sample_shape, generator=torch.Generator().manual_seed(0)))
    except Exception as error:
        shape = "x".join(map(str, sample_shape))
        raise RequestError(
            f"model {name} fails on a sample of {shape}: {type(error).__name__}: {error}"
        ) from error
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    found = Extracted()
    for where, module, inputs, output, around in watch.calls:
        _place(found, where, module, inputs, output)
        kept = sum(size for block, size in around if block in watch.residual)
        size = _activation_bytes(module, inputs, output) + kept * _BYTES
        if size > found.peak_activation_bytes:
            found.peak_activation_bytes, found.peak_at = size, where
    if not found.layers:
        raise RequestError(f"model {name} has no convolution and no linear layer to estimate.")
    return found


def _place(found: Extracted, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    kind = type(module).__name__
    if isinstance(module, nn.Conv2d):
        rows, columns = output.shape[-2:]
        layer = Layer(
            module.in_channels,
            module.out_channels,
            int(rows),
            int(columns),
            int(module.kernel_size[0]),
            int(module.kernel_size[1]),
            stride=int(module.stride[0]),
            stride_q=None if module.stride[0] == module.stride[1] else int(module.stride[1]),
            groups=module.groups,
        )
        found.layers.append(Placed(name, kind, layer))
    elif isinstance(module, nn.Linear):
        # A linear layer is applied to every row of what it is given.
        rows = max(1, output.numel() // module.out_features)
        found.layers.append(
            Placed(name, kind, Layer(module.in_features, module.out_features, rows))
        )
    elif any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
        found.not_estimated.append(f"{name} ({kind}) has weights that this model does not map")
    else:
        found.free[kind] += 1


def _activation_bytes(module: nn.Module, inputs: Any, output: Any) -> int:
    """Count what is held while a layer runs, as the course does."""
    taken, made = _size(inputs) * _BYTES, _size((output,)) * _BYTES
    if isinstance(module, nn.Conv2d):
        return taken + made // module.groups
    if any(word in type(module).__name__ for word in _ONLY_INPUT):
        return taken
    return taken + made


def _size(tensors: Any) -> int:
    return sum(each.numel() for each in tensors if isinstance(each, torch.Tensor))

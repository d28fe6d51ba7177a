"""Building blocks of the zoo: parts that run one after the other, with a shortcut or without."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class LayerChain(nn.Module):
    """Named parts in the order of their calls.

    Not an `nn.Sequential`, which counts as a container of blocks (`model_summary`, `recomputing`).
    """

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last part: the class scores of each image."""
        for part in self.children():
            x = part(x)
        return x


class ResidualChain(LayerChain):
    """Parts in the order of their calls; `shortcut` is called with the input, and added."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last part."""
        out = x
        for name, part in self.named_children():
            if name == "shortcut":
                out += part(x)
            else:
                out = part(out)
        return out


def norm_and_activate(
    convolution: nn.Conv2d, activation: Callable[..., nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return a convolution, batch norm, and an activation in place."""
    norm = nn.BatchNorm2d(convolution.out_channels)
    return nn.Sequential(convolution, norm, activation(inplace=True))

"""Convolutions that see an image and its mirror image alike, without being shown both.

Channels come in pairs: the second half of them sees what the first would see in the mirror. So half
of the weights are learnt, and the other half are these, mirrored; a mean of both at the end of a
network is the same for both images. It is the smallest of the groups of Cohen and Welling, Group
Equivariant Convolutional Networks (2016). Once trained they cost what any convolution costs.

Whatever lies between them must treat left and right alike: pooling of even sides does, a stride
does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FromImage(nn.Conv2d):
    """Make pairs of an image, or of one whose squares of `factor` pixels are channels."""

    def __init__(self, colours: int, factor: int, width: int, kernel: int) -> None:
        super().__init__(colours * factor**2, width, kernel, padding=kernel // 2, bias=False)
        self._squares = (colours, factor, factor)
        _keep_half(self)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with what is learnt and with its mirror image."""
        mirrored = self.weight.unflatten(1, self._squares).flip(3, -1).flatten(1, 3)
        out: Tensor = self._conv_forward(x, torch.cat([self.weight, mirrored]), None)
        return out


class FromPairs(nn.Conv2d):
    """Make pairs of pairs."""

    def __init__(self, in_channels: int, width: int, kernel: int) -> None:
        super().__init__(in_channels, width, kernel, padding=kernel // 2, bias=False)
        _keep_half(self)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with what is learnt and with its mirror image, for which pairs change sides."""
        first, second = self.weight.chunk(2, dim=1)
        mirrored = torch.cat([second, first], dim=1).flip(-1)
        out: Tensor = self._conv_forward(x, torch.cat([self.weight, mirrored]), None)
        return out


class PairNorm(nn.BatchNorm2d):
    """Batch norm with one scale and one shift for both of a pair."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.weight = nn.Parameter(torch.ones(width // 2))
        self.bias = nn.Parameter(torch.zeros(width // 2))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every channel by itself."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        scale, shift = self.weight.repeat(2), self.bias.repeat(2)
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            scale,
            shift,
            self.training,
            self.momentum or 0.0,
            self.eps,
        )


class MeanOfPairs(nn.Module):
    """Give what an image and its mirror image have in common: half as many features."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the mean of the first half of the features and the second."""
        first, second = features.chunk(2, dim=1)
        return (first + second) / 2


class LargestOfPairs(nn.Module):
    """The same, by the larger of both."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the larger of the first half of the features and the second."""
        first, second = features.chunk(2, dim=1)
        return torch.maximum(first, second)


def _keep_half(convolution: nn.Conv2d) -> None:
    """Learn half of the weights, drawn as torch draws them for the whole."""
    half = convolution.weight.detach()[: convolution.out_channels // 2]
    convolution.weight = nn.Parameter(half.clone())

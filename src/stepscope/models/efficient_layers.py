"""Weigh the channels of a picture by what all of them hold.

Hu and others, Squeeze-and-Excitation Networks (2018). Two small linear layers for a whole picture:
an accelerator spends next to nothing on them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# --- Convolutions that see an image and its mirror image alike, without being shown both


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


_FEWEST_HIDDEN = 8


class Gate(nn.Module):
    """Multiply each channel by a number from 0 to 1, got from the means of all channels.

    Mirrored pairs are weighed by what they have in common, both of a pair alike.
    """

    def __init__(self, width: int, squeeze: int, *, mirror: bool) -> None:
        super().__init__()
        self._times = 2 if mirror else 1
        features = width // self._times
        hidden = max(_FEWEST_HIDDEN, features // squeeze)
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        if mirror:
            self.mean.append(MeanOfPairs())
        self.squeeze = nn.Linear(features, hidden)
        self.relu = nn.ReLU(inplace=True)
        self.excite = nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighed channels."""
        weights = torch.sigmoid(self.excite(self.relu(self.squeeze(self.mean(x)))))
        return x * weights.repeat(1, self._times)[:, :, None, None]

"""Small networks for accelerators, built from a design (`efficient_design`).

Space-to-depth turns the pixels of a square into channels, which fills an accelerator that works on
many channels in parallel from the first layer on.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepscope.models.efficient_design import EfficientDesign, read_design
from stepscope.models.layer_chain import LayerChain, ResidualChain

_COLOURS = 3
_FEWEST_HIDDEN = 8

# The best of many designs on held-out images of CIFAR-10 (docs/how-to/accelerator.md).
ACCURATE = "efficient:s2d2_w64-96-192_d0-3-2_skip_silu_se8_mirror_max_meanmax_drop5-10-30"
SMALL = "efficient:s2d2_w48-80-128_d0-2-2_skip_silu_se8_mirror_max_meanmax_drop5-10-30"


# --- layers: mirrored pairs of channels, which treat an image and its mirror image alike


class ToPairs(nn.Conv2d):
    """Convolve to mirrored pairs of channels: with half of the weights, and their mirror image."""

    def __init__(self, in_channels: int, width: int, kernel: int) -> None:
        super().__init__(in_channels, width, kernel, padding=kernel // 2, bias=False)
        half = self.weight.detach()[: width // 2]  # as torch initialises them for the whole
        self.weight = nn.Parameter(half.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the weights and with their mirror image."""
        out: Tensor = self._conv_forward(x, torch.cat([self.weight, self._mirrored()]), None)
        return out

    def _mirrored(self) -> Tensor:
        raise NotImplementedError


class FromImage(ToPairs):
    """Convolve an image, or its space-to-depth by `factor`, to mirrored pairs of channels."""

    def __init__(self, colours: int, factor: int, width: int, kernel: int) -> None:
        super().__init__(colours * factor**2, width, kernel)
        self._squares = (colours, factor, factor)

    def _mirrored(self) -> Tensor:
        squares: Tensor = self.weight.unflatten(1, self._squares)
        return squares.flip(3, -1).flatten(1, 3)


class FromPairs(ToPairs):
    """Convolve mirrored pairs of channels, which the mirror image swaps, to mirrored pairs."""

    def _mirrored(self) -> Tensor:
        first, second = self.weight.chunk(2, dim=1)
        return torch.cat([second, first], dim=1).flip(-1)


class PairNorm(nn.BatchNorm2d):
    """Batch norm with one scale and shift for each pair of channels."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.weight = nn.Parameter(torch.ones(width // 2))
        self.bias = nn.Parameter(torch.zeros(width // 2))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel by its own mean and variance."""
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


class ReducePairs(nn.Module):
    """The mean or maximum of each pair of features, which an image and its mirror image share."""

    def __init__(self, *, largest: bool = False) -> None:
        super().__init__()
        self._largest = largest

    def forward(self, features: Tensor) -> Tensor:
        """Return half as many features."""
        first, second = features.chunk(2, dim=1)
        return torch.maximum(first, second) if self._largest else (first + second) / 2


class Gate(nn.Module):
    """Squeeze-and-excitation (arXiv:1709.01507): scale each channel or pair by 0 to 1."""

    def __init__(self, width: int, squeeze: int, *, mirror: bool) -> None:
        super().__init__()
        self._times = 2 if mirror else 1
        features = width // self._times
        hidden = max(_FEWEST_HIDDEN, features // squeeze)
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        if mirror:
            self.mean.append(ReducePairs())
        self.squeeze = nn.Linear(features, hidden)
        self.relu = nn.ReLU(inplace=True)
        self.excite = nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled channels."""
        weights = torch.sigmoid(self.excite(self.relu(self.squeeze(self.mean(x)))))
        return x * weights.repeat(1, self._times)[:, :, None, None]


# --- blocks and networks


class Residual(ResidualChain):
    """Two convolutions and a shortcut."""

    def __init__(self, design: EfficientDesign, in_channels: int, width: int, stride: int) -> None:
        first = _convolution(design, in_channels, width, stride)
        super().__init__(
            first=_normed(design, first, gate=False),
            second=_normed(design, _convolution(design, width, width), activate=False),
            shortcut=nn.Identity(),
            activation=_activation(design),
        )
        if stride > 1 or in_channels != width:
            narrow = _convolution(design, in_channels, width, stride, kernel=1)
            self.shortcut = _normed(design, narrow, activate=False, gate=False)


class Skip(nn.Module):
    """One convolution and an identity shortcut."""

    def __init__(self, design: EfficientDesign, width: int) -> None:
        super().__init__()
        self.convolution = _normed(design, _convolution(design, width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return residual + shortcut."""
        out: Tensor = x + self.convolution(x)
        return out


class Pooled(nn.Module):
    """Global pooling of each channel or mirrored pair: the mean, or mean plus maximum."""

    def __init__(self, design: EfficientDesign) -> None:
        super().__init__()
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.largest = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self._with_largest = design.head == "meanmax"
        if design.mirror:
            self.mean.append(ReducePairs())
            self.largest.append(ReducePairs(largest=True))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features for the linear layer."""
        out: Tensor = self.mean(x)
        return out + self.largest(x) if self._with_largest else out


class Efficient(LayerChain):
    """The network of a design. The sides of images must be multiples of the stem factor."""

    def __init__(self, design: EfficientDesign, num_classes: int = 10) -> None:
        widths, drops = design.widths, design.dropout_percents or (0,) * len(design.widths)
        stem, stages = _stem(design), nn.Sequential()
        if design.depths[0]:
            stages.append(_blocks(design, widths[0], widths[0], design.depths[0]))
        later = zip(pairwise(widths), design.depths[1:], drops[:-1], strict=True)
        for (before, width), depth, dropped in later:
            stage = nn.Sequential()  # without a pool the first convolution has a stride
            if design.pool != "stride":
                pool = nn.MaxPool2d if design.pool == "max" else nn.AvgPool2d
                stage.append(pool(2, ceil_mode=True))
            if dropped:  # after pooling: a quarter as many random numbers
                stage.append(nn.Dropout(dropped / 100))
            stage.extend(_blocks(design, before, width, depth, halve=True))
            stages.append(stage)
        super().__init__(
            stem=stem,
            stages=stages,
            pool=Pooled(design),
            dropout=nn.Dropout(drops[-1] / 100),
            classifier=nn.Linear(widths[-1] // (2 if design.mirror else 1), num_classes),
        )


def efficient_accurate(num_classes: int = 10) -> Efficient:
    """Return the most accurate network below 0.5 mJ and 100,000 cycles."""
    return Efficient(read_design(ACCURATE), num_classes)


def efficient_small(num_classes: int = 10) -> Efficient:
    """Return a network that costs less than the published solution of the same task."""
    return Efficient(read_design(SMALL), num_classes)


def _stem(design: EfficientDesign) -> nn.Sequential:
    factor, width, kernel = design.stem_factor, design.widths[0], design.kernel
    squares, stride = (factor, 1) if design.stem == "s2d" else (1, factor)
    if design.stem == "conv":
        kernel = max(3, 2 * factor - 1)  # larger than the stride, so that every pixel is used
    channels = _COLOURS * squares**2
    convolution = (
        FromImage(_COLOURS, squares, width, kernel)
        if design.mirror
        else nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    )
    beside = [nn.PixelUnshuffle(squares)] if squares > 1 else []
    return nn.Sequential(*beside, _normed(design, convolution))


def _blocks(
    design: EfficientDesign, in_channels: int, width: int, depth: int, *, halve: bool = False
) -> nn.Sequential:
    stage = nn.Sequential()
    stride = 2 if halve and design.pool == "stride" else 1
    for position in range(depth):
        block_stride = stride if position == 0 else 1
        if design.block == "residual":
            stage.append(Residual(design, in_channels, width, block_stride))
        elif design.block == "skip" and (in_channels, block_stride) == (width, 1):
            stage.append(Skip(design, width))
        else:
            stage.append(_normed(design, _convolution(design, in_channels, width, block_stride)))
        in_channels = width
    return stage


def _convolution(
    design: EfficientDesign,
    in_channels: int,
    width: int,
    stride: int = 1,
    *,
    kernel: int | None = None,
) -> nn.Conv2d:
    size = kernel or design.kernel
    if design.mirror:
        return FromPairs(in_channels, width, size)
    return nn.Conv2d(in_channels, width, size, stride, padding=size // 2, bias=False)


def _normed(
    design: EfficientDesign, convolution: nn.Conv2d, *, activate: bool = True, gate: bool = True
) -> nn.Sequential:
    norm = PairNorm if design.mirror else nn.BatchNorm2d
    layers = nn.Sequential(convolution, norm(convolution.out_channels))
    if activate:
        layers.append(_activation(design))
    if gate and design.squeeze:
        layers.append(Gate(convolution.out_channels, design.squeeze, mirror=design.mirror))
    return layers


def _activation(design: EfficientDesign) -> nn.Module:
    return nn.SiLU(inplace=True) if design.activation == "silu" else nn.ReLU(inplace=True)

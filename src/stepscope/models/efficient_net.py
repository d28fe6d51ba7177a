"""Networks of a design (`efficient_design`): plain or residual, small, and fit for an accelerator.

Space-to-depth puts the pixels of a square beside each other as channels. That costs nothing, and an
array that spreads channels is used in full from the first layer on, where three colours are not.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from stepscope.models.efficient_design import EfficientDesign, read_design
from stepscope.models.efficient_layers import (
    FromImage,
    FromPairs,
    Gate,
    LargestOfPairs,
    MeanOfPairs,
    PairNorm,
)

_COLOURS = 3

# What came out of comparing designs on held-out images of CIFAR-10 (docs/labs.md).
ACCURATE = "efficient:s2d2_w64-96-192_d0-3-2_skip_silu_se8_mirror_max_meanmax_drop5-10-30"
SMALL = "efficient:s2d2_w48-80-128_d0-2-2_skip_silu_se8_mirror_max_meanmax_drop5-10-30"


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, design: EfficientDesign, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        first = _convolution(design, in_channels, width, stride)
        self.first = _normed(design, first, gate=False)
        self.second = _normed(design, _convolution(design, width, width), activate=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != width:
            narrow = _convolution(design, in_channels, width, stride, kernel=1)
            self.shortcut = _normed(design, narrow, activate=False, gate=False)
        self.activation = _activation(design)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of shortcut and residual."""
        out: Tensor = self.activation(self.second(self.first(x)) + self.shortcut(x))
        return out


class Skip(nn.Module):
    """One convolution beside a shortcut, which stays as it is."""

    def __init__(self, design: EfficientDesign, width: int) -> None:
        super().__init__()
        self.convolution = _normed(design, _convolution(design, width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        out: Tensor = x + self.convolution(x)
        return out


class Pooled(nn.Module):
    """One number a channel, or a mirrored pair of channels: the mean, or mean and largest added."""

    def __init__(self, design: EfficientDesign) -> None:
        super().__init__()
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.largest = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self._with_largest = design.head == "meanmax"
        if design.mirror:
            self.mean.append(MeanOfPairs())
            self.largest.append(LargestOfPairs())

    def forward(self, x: Tensor) -> Tensor:
        """Return the features that the last layer sees."""
        out: Tensor = self.mean(x)
        return out + self.largest(x) if self._with_largest else out


class Efficient(nn.Module):
    """The network of a design."""

    def __init__(self, design: EfficientDesign, num_classes: int) -> None:
        super().__init__()
        widths, drops = design.widths, design.dropout_percents or (0,) * len(design.widths)
        self.stem = _stem(design)
        self.stages = nn.Sequential()
        if design.depths[0]:
            self.stages.append(_blocks(design, widths[0], widths[0], design.depths[0]))
        later = zip(pairwise(widths), design.depths[1:], drops[:-1], strict=True)
        for (before, width), depth, dropped in later:
            stage = _halving(design)
            if dropped:  # of what is left by then: a quarter as many numbers to draw
                stage.append(nn.Dropout(dropped / 100))
            stage.extend(_blocks(design, before, width, depth, halve=True))
            self.stages.append(stage)
        self.pool = Pooled(design)
        self.dropout = nn.Dropout(drops[-1] / 100)
        self.classifier = nn.Linear(widths[-1] // (2 if design.mirror else 1), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for every image."""
        out = self.pool(self.stages(self.stem(images)))
        scores: Tensor = self.classifier(self.dropout(out))
        return scores


def efficient(design: EfficientDesign, num_classes: int = 10) -> Efficient:
    """Build the network of a design; its stem must divide the sides of the images."""
    return Efficient(design, num_classes)


def efficient_accurate(num_classes: int = 10) -> Efficient:
    """Build the most accurate one that keeps below 0.5 mJ and 100,000 cycles."""
    return efficient(read_design(ACCURATE), num_classes)


def efficient_small(num_classes: int = 10) -> Efficient:
    """Build one that costs less than the published solution of the same task."""
    return efficient(read_design(SMALL), num_classes)


def _stem(design: EfficientDesign) -> nn.Sequential:
    factor, width, kernel = design.stem_factor, design.widths[0], design.kernel
    squares, stride = (factor, 1) if design.stem == "s2d" else (1, factor)
    if design.stem == "conv":
        # It reaches into the next squares, so that no pixel is passed over.
        kernel = max(3, 2 * factor - 1)
    channels = _COLOURS * squares**2
    convolution = (
        FromImage(_COLOURS, squares, width, kernel)
        if design.mirror
        else nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    )
    beside = [nn.PixelUnshuffle(squares)] if squares > 1 else []
    return nn.Sequential(*beside, _normed(design, convolution))


def _halving(design: EfficientDesign) -> nn.Sequential:
    if design.pool == "max":
        return nn.Sequential(nn.MaxPool2d(2, ceil_mode=True))
    if design.pool == "avg":
        return nn.Sequential(nn.AvgPool2d(2, ceil_mode=True))
    return nn.Sequential()  # the first convolution has a stride


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

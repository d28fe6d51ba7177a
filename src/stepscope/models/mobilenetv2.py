"""MobileNetV2 (arXiv:1801.04381): inverted residuals, for CIFAR and as published for ImageNet."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from stepscope.models.layer_chain import LayerChain

# From channels in and out, expansion and stride.
MakeInvertedResidual = Callable[[int, int, int, int], nn.Module]


class InvertedResidual(nn.Module):
    """A 1x1 expansion, a depthwise 3x3, and a linear 1x1 projection."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = expansion * in_channels
        self.expand = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.depthwise = nn.Conv2d(
            width, width, 3, stride=stride, padding=1, groups=width, bias=False
        )
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.narrow = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module | None = None
        if stride == 1 and in_channels == out_channels:
            self.shortcut = nn.Identity()
        elif stride == 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual, plus the shortcut if the stride is 1."""
        out: Tensor = self.relu1(self.bn1(self.expand(x)))
        out = self.relu2(self.bn2(self.depthwise(out)))
        out = self.bn3(self.narrow(out))
        if self.shortcut is not None:
            out += self.shortcut(x)
        return out


class ImageNetInvertedResidual(nn.Module):
    """The block as published: no expansion by 1, and shortcuts only between equal shapes."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = expansion * in_channels
        self.layers = nn.Sequential()
        if expansion > 1:
            self.layers.extend(_activated(nn.Conv2d(in_channels, width, 1, bias=False), nn.ReLU6))
        depthwise = nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False)
        self.layers.extend(_activated(depthwise, nn.ReLU6))
        self.layers.append(nn.Conv2d(width, out_channels, 1, bias=False))
        self.layers.append(nn.BatchNorm2d(out_channels))
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual, plus the input if the shape stays."""
        out: Tensor = self.layers(x)
        return out + x if self.has_shortcut else out


class MobileNetV2(LayerChain):
    """A stem, seventeen inverted residuals, a 1x1 convolution to 1,280 channels, a classifier."""


def mobilenetv2(num_classes: int = 10) -> MobileNetV2:
    """Return MobileNetV2 for 32x32 images."""
    return MobileNetV2(
        stem=_activated(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.ReLU),
        blocks=_blocks(InvertedResidual, second_stride=1),
        widen=_activated(nn.Conv2d(320, 1280, 1, bias=False), nn.ReLU),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(1280, num_classes),
    )


def mobilenetv2_imagenet(num_classes: int = 1000) -> MobileNetV2:
    """Return MobileNetV2 for 224x224 images; any size from 32x32 up works."""
    return MobileNetV2(
        stem=_activated(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.ReLU6),
        blocks=_blocks(ImageNetInvertedResidual, second_stride=2),
        widen=_activated(nn.Conv2d(320, 1280, 1, bias=False), nn.ReLU6),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes)),
    )


def _blocks(make_block: MakeInvertedResidual, *, second_stride: int) -> nn.Sequential:
    stages = (  # expansion, output channels, number of blocks, stride of the first of them
        (1, 16, 1, 1),
        (6, 24, 2, second_stride),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    blocks = nn.Sequential()
    channels = 32
    for expansion, width, depth, stride in stages:
        for position in range(depth):
            blocks.append(make_block(channels, width, expansion, stride if position == 0 else 1))
            channels = width
    return blocks


def _activated(convolution: nn.Conv2d, activation: Callable[..., nn.Module]) -> nn.Sequential:
    norm = nn.BatchNorm2d(convolution.out_channels)
    return nn.Sequential(convolution, norm, activation(inplace=True))

"""MobileNet V1 (arXiv:1704.04861) for CIFAR, and V2 (arXiv:1801.04381) for CIFAR and ImageNet."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from stepscope.models.layer_chain import LayerChain, ResidualChain, norm_and_activate

# Of V1: output channels and stride of each separable convolution.
BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((1024, 2), (1024, 1)),
)


class MobileNet(LayerChain):
    """A full convolution, blocks, and a linear layer."""


class SeparableConv(LayerChain):
    """A depthwise 3x3 and a pointwise 1x1 convolution."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(
            depthwise=_depthwise(in_channels, stride),
            bn1=nn.BatchNorm2d(in_channels),
            relu1=nn.ReLU(inplace=True),
            pointwise=nn.Conv2d(in_channels, out_channels, 1, bias=False),
            bn2=nn.BatchNorm2d(out_channels),
            relu2=nn.ReLU(inplace=True),
        )


class InvertedResidual(ResidualChain):
    """A 1x1 expansion, a depthwise 3x3, and a linear 1x1 projection; a shortcut if stride is 1."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        width = expansion * in_channels
        super().__init__(
            expand=nn.Conv2d(in_channels, width, 1, bias=False),
            bn1=nn.BatchNorm2d(width),
            relu1=nn.ReLU(inplace=True),
            depthwise=_depthwise(width, stride),
            bn2=nn.BatchNorm2d(width),
            relu2=nn.ReLU(inplace=True),
            narrow=nn.Conv2d(width, out_channels, 1, bias=False),
            bn3=nn.BatchNorm2d(out_channels),
        )
        if stride == 1 and in_channels == out_channels:
            self.shortcut: nn.Module = nn.Identity()
        elif stride == 1:
            project = nn.Conv2d(in_channels, out_channels, 1, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(out_channels))


class ImageNetInvertedResidual(ResidualChain):
    """The block as published: no expansion by 1, and shortcuts only between equal shapes."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        width = expansion * in_channels
        layers = nn.Sequential()
        if expansion > 1:
            expand = nn.Conv2d(in_channels, width, 1, bias=False)
            layers.extend(norm_and_activate(expand, nn.ReLU6))
        layers.extend(norm_and_activate(_depthwise(width, stride), nn.ReLU6))
        layers.append(nn.Conv2d(width, out_channels, 1, bias=False))
        layers.append(nn.BatchNorm2d(out_channels))
        super().__init__(layers=layers)
        if stride == 1 and in_channels == out_channels:
            self.shortcut = nn.Identity()


def mobilenet(num_classes: int = 10) -> MobileNet:
    """Return MobileNet V1 for 32x32 images: thirteen separable convolutions."""
    stem = norm_and_activate(nn.Conv2d(3, 32, 3, padding=1, bias=False))
    blocks = nn.Sequential()
    channels = 32
    for width, stride in BLOCKS:
        blocks.append(SeparableConv(channels, width, stride))
        channels = width
    return MobileNet(
        stem=stem,
        blocks=blocks,
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(channels, num_classes),
    )


def mobilenetv2(num_classes: int = 10) -> MobileNet:
    """Return MobileNetV2 for 32x32 images."""
    return MobileNet(
        stem=norm_and_activate(nn.Conv2d(3, 32, 3, padding=1, bias=False)),
        blocks=_inverted_residuals(InvertedResidual, second_stride=1),
        widen=norm_and_activate(nn.Conv2d(320, 1280, 1, bias=False)),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(1280, num_classes),
    )


def mobilenetv2_imagenet(num_classes: int = 1000) -> MobileNet:
    """Return MobileNetV2 for 224x224 images; any size from 32x32 up works."""
    return MobileNet(
        stem=norm_and_activate(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.ReLU6),
        blocks=_inverted_residuals(ImageNetInvertedResidual, second_stride=2),
        widen=norm_and_activate(nn.Conv2d(320, 1280, 1, bias=False), nn.ReLU6),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes)),
    )


def _depthwise(channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)


def _inverted_residuals(
    make_block: Callable[[int, int, int, int], nn.Module], *, second_stride: int
) -> nn.Sequential:
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

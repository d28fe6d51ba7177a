"""ResNet (arXiv:1512.03385) for CIFAR and ImageNet, which differ in the stem; its variants.

Bottlenecks have their stride in the 3x3 convolution. ResNeXt (arXiv:1611.05431) has grouped 3x3
convolutions; PreActResNet (arXiv:1603.05027) has batch norm and ReLU before each convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from stepscope.models.layer_chain import LayerChain, ResidualChain, norm_and_activate


class BasicBlock(ResidualChain):
    """Two 3x3 convolutions and a shortcut."""

    expansion: ClassVar[int] = 1
    """The number of output channels, as a multiple of the width."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__(
            conv1=nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False),
            bn1=nn.BatchNorm2d(width),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(width, width, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(width),
            shortcut=_shortcut(in_channels, width, stride),
            relu2=nn.ReLU(inplace=True),
        )


class Bottleneck(ResidualChain):
    """A 3x3 convolution between two 1x1 convolutions, and a shortcut."""

    expansion: ClassVar[int] = 4
    groups: ClassVar[int] = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        out_channels, groups = width * self.expansion, self.groups
        super().__init__(
            conv1=nn.Conv2d(in_channels, width, 1, bias=False),
            bn1=nn.BatchNorm2d(width),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False),
            bn2=nn.BatchNorm2d(width),
            relu2=nn.ReLU(inplace=True),
            conv3=nn.Conv2d(width, out_channels, 1, bias=False),
            bn3=nn.BatchNorm2d(out_channels),
            shortcut=_shortcut(in_channels, out_channels, stride),
            relu3=nn.ReLU(inplace=True),
        )


class GroupedBottleneck(Bottleneck):
    """A bottleneck whose 3x3 convolution has two groups."""

    expansion = 2
    groups = 2


class PreActBlock(nn.Module):
    """Two pre-activated 3x3 convolutions and a shortcut, without an activation of the sum."""

    expansion: ClassVar[int] = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        # Not in place: without the batch norm this would overwrite the input of the block, which
        # the shortcut still reads.
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.projection: nn.Conv2d | None = None
        if stride != 1 or in_channels != width:
            self.projection = nn.Conv2d(in_channels, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return residual + shortcut."""
        activated: Tensor = self.relu1(self.bn1(x))
        shortcut = x if self.projection is None else self.projection(activated)
        out: Tensor = self.conv1(activated)
        out = self.conv2(self.relu2(self.bn2(out)))
        out += shortcut
        return out


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the identity, or a 1x1 projection if the block changes the shape."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
        nn.BatchNorm2d(out_channels),
    )


class ResNet(LayerChain):
    """A stem of 64 channels, stages of blocks, global average pooling, and a linear layer.

    Each stage after the first doubles the width and halves the resolution.
    """

    def __init__(
        self,
        stem: nn.Module,
        block: type[BasicBlock | Bottleneck | PreActBlock],
        depths: Sequence[int],
        num_classes: int,
        width: int = 64,
    ) -> None:
        stages = nn.Sequential()
        channels = 64
        for index, depth in enumerate(depths):
            stage = nn.Sequential()
            for position in range(depth):
                stride = 2 if index > 0 and position == 0 else 1
                stage.append(block(channels, width * 2**index, stride))
                channels = width * 2**index * block.expansion
            stages.append(stage)
        super().__init__(
            stem=stem,
            stages=stages,
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Linear(channels, num_classes),
        )


def resnet18(num_classes: int = 10) -> ResNet:
    """Return ResNet-18 for 32x32 images."""
    return ResNet(_cifar_stem(3), BasicBlock, (2, 2, 2, 2), num_classes)


def resnet50(num_classes: int = 10) -> ResNet:
    """Return ResNet-50 for 32x32 images."""
    return ResNet(_cifar_stem(3), Bottleneck, (3, 4, 6, 3), num_classes)


def resnet18_imagenet(num_classes: int = 1000) -> ResNet:
    """Return ResNet-18 for 224x224 images; any size from 32x32 up works."""
    return ResNet(_imagenet_stem(), BasicBlock, (2, 2, 2, 2), num_classes)


def resnet50_imagenet(num_classes: int = 1000) -> ResNet:
    """Return ResNet-50 for 224x224 images; any size from 32x32 up works."""
    return ResNet(_imagenet_stem(), Bottleneck, (3, 4, 6, 3), num_classes)


def preact_resnet18(num_classes: int = 10) -> ResNet:
    """Return PreActResNet-18 for 32x32 images."""
    stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    return ResNet(stem, PreActBlock, (2, 2, 2, 2), num_classes)


def resnext29_2x64d(num_classes: int = 10) -> ResNet:
    """Return ResNeXt-29 with two groups of 64 channels, for 32x32 images."""
    return ResNet(_cifar_stem(1), GroupedBottleneck, (3, 3, 3), num_classes, width=2 * 64)


def _cifar_stem(kernel: int) -> nn.Sequential:
    return norm_and_activate(nn.Conv2d(3, 64, kernel, padding=kernel // 2, bias=False))


def _imagenet_stem() -> nn.Sequential:
    stem = norm_and_activate(nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False))
    return stem.append(nn.MaxPool2d(3, stride=2, padding=1))

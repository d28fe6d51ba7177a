"""ResNeXt (arXiv:1611.05431): ResNet with grouped 3x3 convolutions in its bottlenecks."""

from __future__ import annotations

from stepscope.models.resnet import Bottleneck, ResNet, cifar_stem


class GroupedBottleneck(Bottleneck):
    """A bottleneck whose 3x3 convolution has two groups."""

    expansion = 2
    groups = 2


class ResNeXt(ResNet):
    """A 1x1 stem, three stages of three blocks, global average pooling, and a linear layer."""

    def __init__(self, group_width: int, num_classes: int) -> None:
        width = GroupedBottleneck.groups * group_width
        super().__init__(cifar_stem(1), GroupedBottleneck, (3, 3, 3), num_classes, width)


def resnext29_2x64d(num_classes: int = 10) -> ResNeXt:
    """Return ResNeXt-29 with two groups of 64 channels, for 32x32 images."""
    return ResNeXt(64, num_classes)

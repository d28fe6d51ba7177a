"""ResNeXt (arXiv:1611.05431): ResNet with grouped 3x3 convolutions in its bottlenecks."""

from __future__ import annotations

from stepscope.models.resnet import Bottleneck, ResNet, cifar_stem


class GroupedBottleneck(Bottleneck):
    """A bottleneck whose 3x3 convolution has two groups."""

    expansion = 2
    groups = 2


def resnext29_2x64d(num_classes: int = 10) -> ResNet:
    """Return ResNeXt-29 with two groups of 64 channels, for 32x32 images."""
    return ResNet(cifar_stem(1), GroupedBottleneck, (3, 3, 3), num_classes, width=2 * 64)

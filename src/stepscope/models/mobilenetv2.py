"""MobileNetV2 (arXiv:1801.04381) for 32x32 images: widen, filter each channel, narrow again.

Unlike the paper's, the CIFAR variant activates with ReLU (not ReLU6), keeps the resolution in the
stem and the second stage, and projects the shortcut where only the channels change.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

# Of channels in and out, expansion and stride.
MakeBlock = Callable[[int, int, int, int], nn.Module]


class MobileNetV2(nn.Module):
    """A stem, seventeen inverted residuals, a 1x1 to 1,280 channels, a classifier."""

    def __init__(
        self, stem: nn.Module, blocks: nn.Module, widen: nn.Module, classifier: nn.Module
    ) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = blocks
        self.widen = widen
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for every image."""
        out = self.widen(self.blocks(self.stem(images)))
        scores: Tensor = self.classifier(self.flatten(self.pool(out)))
        return scores


def inverted_residuals(make_block: MakeBlock, *, second_stride: int) -> nn.Sequential:
    """Build the seven stages; only the second's stride depends on the size of the images."""
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


def activated(convolution: nn.Conv2d, activation: Callable[..., nn.Module]) -> nn.Sequential:
    """Follow a convolution by batch norm and an activation."""
    norm = nn.BatchNorm2d(convolution.out_channels)
    return nn.Sequential(convolution, norm, activation(inplace=True))


class InvertedResidual(nn.Module):
    """A depthwise 3x3 between a widening and a narrowing 1x1, which ends without activation."""

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
        """Return the residual, with the shortcut added where the resolution stays."""
        out: Tensor = self.relu1(self.bn1(self.expand(x)))
        out = self.relu2(self.bn2(self.depthwise(out)))
        out = self.bn3(self.narrow(out))
        if self.shortcut is not None:
            out += self.shortcut(x)
        return out


def mobilenetv2(num_classes: int = 10) -> MobileNetV2:
    """Build MobileNetV2 for 32x32 images."""
    return MobileNetV2(
        activated(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.ReLU),
        inverted_residuals(InvertedResidual, second_stride=1),
        activated(nn.Conv2d(320, 1280, 1, bias=False), nn.ReLU),
        nn.Linear(1280, num_classes),
    )

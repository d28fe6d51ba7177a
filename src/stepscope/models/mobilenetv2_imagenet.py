"""MobileNetV2 (arXiv:1801.04381) as published, for 224x224 images.

Beside the CIFAR variant (`mobilenetv2`) it halves the resolution in the stem and in the second
stage, activates with ReLU6, does not widen in its first block, has shortcuts only between equal
shapes, and drops a fifth of what its classifier sees.
"""

from __future__ import annotations

from torch import Tensor, nn

# Expansion, output channels, number of blocks and stride of the first of them.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """A depthwise 3x3 between a widening and a narrowing 1x1, which ends without activation."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = expansion * in_channels
        self.layers = nn.Sequential()
        if expansion > 1:
            self.layers.extend(_activated(nn.Conv2d(in_channels, width, 1, bias=False)))
        depthwise = nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False)
        self.layers.extend(_activated(depthwise))
        self.layers.append(nn.Conv2d(width, out_channels, 1, bias=False))
        self.layers.append(nn.BatchNorm2d(out_channels))
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual, with the input added where the shape stays."""
        out: Tensor = self.layers(x)
        return out + x if self.has_shortcut else out


class MobileNetV2(nn.Module):
    """A stem, seventeen inverted residuals, a 1x1 to 1,280 channels, one linear layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = _activated(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False))
        self.blocks = nn.Sequential()
        channels = 32
        for expansion, width, depth, stride in STAGES:
            for position in range(depth):
                block_stride = stride if position == 0 else 1
                self.blocks.append(InvertedResidual(channels, width, expansion, block_stride))
                channels = width
        self.widen = _activated(nn.Conv2d(channels, 1280, 1, bias=False))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for every image."""
        out = self.widen(self.blocks(self.stem(images)))
        scores: Tensor = self.classifier(self.flatten(self.pool(out)))
        return scores


def mobilenetv2_imagenet(num_classes: int = 1000) -> MobileNetV2:
    """Build MobileNetV2 for 224x224 images; any size from 32x32 up works."""
    return MobileNetV2(num_classes)


def _activated(convolution: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(
        convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU6(inplace=True)
    )

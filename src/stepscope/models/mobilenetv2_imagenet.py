"""MobileNetV2 (arXiv:1801.04381) as published, for 224x224 images.

Beside the CIFAR variant (`mobilenetv2`) it halves the resolution in the stem and in the second
stage, activates with ReLU6, does not widen in its first block, has shortcuts only between equal
shapes, and drops a fifth of what its classifier sees.
"""

from __future__ import annotations

from torch import Tensor, nn

from stepscope.models.mobilenetv2 import MobileNetV2, activated, inverted_residuals


class ImageNetInvertedResidual(nn.Module):
    """A depthwise 3x3 between a widening and a narrowing 1x1, which ends without activation."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = expansion * in_channels
        self.layers = nn.Sequential()
        if expansion > 1:
            self.layers.extend(activated(nn.Conv2d(in_channels, width, 1, bias=False), nn.ReLU6))
        depthwise = nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False)
        self.layers.extend(activated(depthwise, nn.ReLU6))
        self.layers.append(nn.Conv2d(width, out_channels, 1, bias=False))
        self.layers.append(nn.BatchNorm2d(out_channels))
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual, with the input added where the shape stays."""
        out: Tensor = self.layers(x)
        return out + x if self.has_shortcut else out


def mobilenetv2_imagenet(num_classes: int = 1000) -> MobileNetV2:
    """Build MobileNetV2 for 224x224 images; any size from 32x32 up works."""
    return MobileNetV2(
        activated(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.ReLU6),
        inverted_residuals(ImageNetInvertedResidual, second_stride=2),
        activated(nn.Conv2d(320, 1280, 1, bias=False), nn.ReLU6),
        nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes)),
    )

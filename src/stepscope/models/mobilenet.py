"""MobileNet V1 (arXiv:1704.04861) for 32x32 images: depthwise separable convolutions."""

from __future__ import annotations

from torch import Tensor, nn

# Output channels and stride of each separable convolution.
BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((1024, 2), (1024, 1)),
)


class SeparableConv(nn.Module):
    """A depthwise 3x3 and a pointwise 1x1 convolution."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            in_channels, in_channels, 3, stride=stride, padding=1, groups=in_channels, bias=False
        )
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Filter each channel, then mix the channels."""
        out: Tensor = self.relu1(self.bn1(self.depthwise(x)))
        out = self.relu2(self.bn2(self.pointwise(out)))
        return out


class MobileNet(nn.Module):
    """A full convolution, thirteen separable ones, and a linear layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential()
        channels = 32
        for width, stride in BLOCKS:
            self.blocks.append(SeparableConv(channels, width, stride))
            channels = width
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of each image."""
        out = self.blocks(self.stem(images))
        scores: Tensor = self.classifier(self.flatten(self.pool(out)))
        return scores

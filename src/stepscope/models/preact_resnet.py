"""PreActResNet (arXiv:1603.05027): ResNet with batch norm and ReLU before each convolution."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from stepscope.models.resnet import ResNet


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


def preact_resnet18(num_classes: int = 10) -> ResNet:
    """Return PreActResNet-18 for 32x32 images."""
    stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    return ResNet(stem, PreActBlock, (2, 2, 2, 2), num_classes)

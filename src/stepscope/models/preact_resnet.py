"""PreActResNet (arXiv:1603.05027): ResNet with norm and activation before each convolution."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class PreActBlock(nn.Module):
    """Two pre-activated 3x3 convolutions beside a shortcut that nothing activates afterwards."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        # Not in place: with the batch norm taken out this would overwrite the block's own input,
        # which the shortcut still reads.
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.projection: nn.Conv2d | None = None
        if stride != 1 or in_channels != width:
            self.projection = nn.Conv2d(in_channels, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of shortcut and residual."""
        activated: Tensor = self.relu1(self.bn1(x))
        shortcut = x if self.projection is None else self.projection(activated)
        out: Tensor = self.conv1(activated)
        out = self.conv2(self.relu2(self.bn2(out)))
        out += shortcut
        return out


class PreActResNet(nn.Module):
    """One convolution, four stages of blocks, a mean over each channel, one linear layer."""

    def __init__(self, depths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.stages = nn.Sequential()
        channels = 64
        for index, depth in enumerate(depths):
            width = 64 * 2**index
            stage = nn.Sequential()
            for position in range(depth):
                stride = 2 if index > 0 and position == 0 else 1
                stage.append(PreActBlock(channels, width, stride))
                channels = width
            self.stages.append(stage)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for every image."""
        out = self.stages(self.stem(images))
        scores: Tensor = self.classifier(self.flatten(self.pool(out)))
        return scores


def preact_resnet18(num_classes: int = 10) -> PreActResNet:
    """Build PreActResNet-18 for 32x32 images."""
    return PreActResNet((2, 2, 2, 2), num_classes)

"""ResNeXt (arXiv:1611.05431): ResNet bottlenecks whose 3x3 convolution works in groups."""

from __future__ import annotations

from torch import Tensor, nn


class GroupedBottleneck(nn.Module):
    """A grouped 3x3 convolution between two 1x1, beside a shortcut."""

    def __init__(self, in_channels: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        out_channels = 2 * width
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )
        self.relu3 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of shortcut and residual."""
        out: Tensor = self.relu1(self.bn1(self.conv1(x)))
        out = self.relu2(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        out = self.relu3(out)
        return out


class ResNeXt(nn.Module):
    """A 1x1 stem, three stages of three blocks, a mean over each channel, one linear layer."""

    def __init__(self, groups: int, group_width: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
        )
        self.stages = nn.Sequential()
        channels = 64
        for index in range(3):
            width = groups * group_width * 2**index
            stage = nn.Sequential()
            for position in range(3):
                stride = 2 if index > 0 and position == 0 else 1
                stage.append(GroupedBottleneck(channels, width, stride, groups))
                channels = 2 * width
            self.stages.append(stage)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for every image."""
        out = self.stages(self.stem(images))
        scores: Tensor = self.classifier(self.flatten(self.pool(out)))
        return scores


def resnext29_2x64d(num_classes: int = 10) -> ResNeXt:
    """Build ResNeXt-29 with two groups of 64 channels, for 32x32 images."""
    return ResNeXt(groups=2, group_width=64, num_classes=num_classes)

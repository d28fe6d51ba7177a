"""MobileNet V1 (arXiv:1704.04861) for 32x32 images: depthwise separable convolutions."""

from __future__ import annotations

from torch import nn

from stepscope.models.layer_chain import LayerChain

# Output channels and stride of each separable convolution.
BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    *((1024, 2), (1024, 1)),
)


class SeparableConv(LayerChain):
    """A depthwise 3x3 and a pointwise 1x1 convolution."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(
            depthwise=nn.Conv2d(
                in_channels, in_channels, 3, stride, padding=1, groups=in_channels, bias=False
            ),
            bn1=nn.BatchNorm2d(in_channels),
            relu1=nn.ReLU(inplace=True),
            pointwise=nn.Conv2d(in_channels, out_channels, 1, bias=False),
            bn2=nn.BatchNorm2d(out_channels),
            relu2=nn.ReLU(inplace=True),
        )


class MobileNet(LayerChain):
    """A full convolution, thirteen separable ones, and a linear layer."""

    def __init__(self, num_classes: int) -> None:
        stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
        )
        blocks = nn.Sequential()
        channels = 32
        for width, stride in BLOCKS:
            blocks.append(SeparableConv(channels, width, stride))
            channels = width
        super().__init__(
            stem=stem,
            blocks=blocks,
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Linear(channels, num_classes),
        )

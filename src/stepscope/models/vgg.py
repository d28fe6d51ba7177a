"""VGG11 (arXiv:1409.1556), for CIFAR and for ImageNet: 3x3 convolutions between max pools."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from stepscope.models.layer_chain import LayerChain

# The channels of each convolution, by resolution; a max pool follows each inner tuple.
VGG11_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG(LayerChain):
    """Features, pooling to a fixed size, and a classifier."""


def vgg11(num_classes: int = 10) -> VGG:
    """Return VGG11 for 32x32 images: with batch norm and one linear layer."""
    return VGG(
        features=_features(VGG11_STAGES, batch_norm=True),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(512, num_classes),
    )


def vgg11_imagenet(num_classes: int = 10) -> VGG:
    """Return VGG11 for images from 32x32 up: without batch norm, with three linear layers."""
    model = VGG(
        features=_features(VGG11_STAGES, batch_norm=False),
        pool=nn.AdaptiveAvgPool2d(7),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, num_classes),
        ),
    )
    _initialise(model)
    return model


def _features(stages: Sequence[Sequence[int]], *, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for stage in stages:
        for width in stage:
            layers.append(nn.Conv2d(channels, width, kernel_size=3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _initialise(model: nn.Module) -> None:
    """Initialise as arXiv:1502.01852: without batch norm, torch's default does not learn."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)

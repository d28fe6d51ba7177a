"""VGG11: plain 3x3 convolutions between max pools, for CIFAR and in the ImageNet layout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

# The channels of each convolution; one inner tuple a resolution, a max pool after each.
VGG11_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG(nn.Module):
    """Features, a pool to a fixed size, a classifier."""

    def __init__(self, features: nn.Sequential, pool: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.pool = pool
        self.flatten = nn.Flatten()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return one score a class for every image."""
        scores: Tensor = self.classifier(self.flatten(self.pool(self.features(images))))
        return scores


def vgg11(num_classes: int = 10) -> VGG:
    """Build VGG11 for CIFAR: with batch norm, one linear layer at the end."""
    return VGG(
        features=_features(VGG11_STAGES, batch_norm=True),
        pool=nn.AdaptiveAvgPool2d(1),
        classifier=nn.Linear(512, num_classes),
    )


def vgg11_imagenet(num_classes: int = 10) -> VGG:
    """Build VGG11 for 224x224 images: no batch norm, three linear layers.

    Smaller images, from 32x32 up, are pooled to the 7x7 that its first linear layer takes.
    """
    model = VGG(
        features=_features(VGG11_STAGES, batch_norm=False),
        pool=nn.AdaptiveAvgPool2d(7),
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
    _keep_signal_alive(model)
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


def _keep_signal_alive(model: nn.Module) -> None:
    """Draw the weights after He et al. (arXiv:1502.01852)."""
    # PyTorch's default draw shrinks the signal to about 0.4 of itself a layer. Eleven layers
    # without batch norm would leave nothing to learn from.
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)

"""LeNet-5 for 32x32 colour images."""

from __future__ import annotations

from torch import nn

from stepscope.models.layer_chain import LayerChain


class LeNet(LayerChain):
    """Two convolutions and three linear layers, with ReLU and max pooling."""

    def __init__(self, num_classes: int) -> None:
        features = nn.Sequential(
            nn.Conv2d(3, 6, kernel_size=5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, num_classes),
        )
        super().__init__(features=features, flatten=nn.Flatten(), classifier=classifier)

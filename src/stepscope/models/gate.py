"""Weigh the channels of a picture by what all of them hold.

Hu and others, Squeeze-and-Excitation Networks (2018). Two small linear layers for a whole picture:
an accelerator spends next to nothing on them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepscope.models.mirrored import MeanOfPairs

_FEWEST_HIDDEN = 8


class Gate(nn.Module):
    """Multiply each channel by a number from 0 to 1, got from the means of all channels.

    Mirrored pairs are weighed by what they have in common, both of a pair alike.
    """

    def __init__(self, width: int, squeeze: int, *, mirror: bool) -> None:
        super().__init__()
        self._times = 2 if mirror else 1
        features = width // self._times
        hidden = max(_FEWEST_HIDDEN, features // squeeze)
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        if mirror:
            self.mean.append(MeanOfPairs())
        self.squeeze = nn.Linear(features, hidden)
        self.relu = nn.ReLU(inplace=True)
        self.excite = nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighed channels."""
        weights = torch.sigmoid(self.excite(self.relu(self.squeeze(self.mean(x)))))
        return x * weights.repeat(1, self._times)[:, :, None, None]

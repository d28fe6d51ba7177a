"""A network whose parts run one after the other."""

from __future__ import annotations

from torch import Tensor, nn


class LayerChain(nn.Module):
    """Named parts in the order of their calls.

    Not an `nn.Sequential`, which counts as a container of blocks (`model_summary`, `recomputing`).
    """

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last part: the class scores of each image."""
        for part in self.children():
            x = part(x)
        return x

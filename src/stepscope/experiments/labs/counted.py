"""Networks counted without training them. torch is imported when the first one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stepscope.models import registry

if TYPE_CHECKING:
    from stepscope.estimate.network import Network

_OWN_INPUT, _OWN_CLASSES = (3, 32, 32), 10


def count(model: str, norm: Literal["batch", "none"] = "batch") -> Network:
    """Count a network for images of 32x32 and ten classes, whatever it was laid out for."""
    built = registry.build(model, classes=_OWN_CLASSES, norm=norm)
    from stepscope.estimate.network import count_network

    return count_network(built, _OWN_INPUT, model)

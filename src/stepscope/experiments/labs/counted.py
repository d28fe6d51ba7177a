"""Networks counted without training them. torch is imported when the first one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stepscope.models import registry
from stepscope.spec import RunSpec
from stepscope.train.reading import reading_of

if TYPE_CHECKING:
    from stepscope.estimate.network import Network

_OWN_INPUT, _OWN_CLASSES = (3, 32, 32), 10


def count(model: str, norm: Literal["batch", "none"] = "batch") -> Network:
    """Count a network for images of 32x32 and ten classes, whatever it was laid out for."""
    built = registry.build(model, classes=_OWN_CLASSES, norm=norm)
    from stepscope.estimate.network import count_network

    return count_network(built, _OWN_INPUT, model)


def count_for(spec: RunSpec) -> Network:
    """Count the network of a spec for the samples and the classes of its data."""
    from stepscope.data import catalogue  # needs numpy

    dataset = catalogue.find(spec.data, reading_of(spec))
    built = registry.build(spec.model, classes=dataset.classes, norm=spec.norm)
    from stepscope.estimate.network import count_network

    return count_network(built, dataset.shape, spec.model, dataset.tokens)

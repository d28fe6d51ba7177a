"""Networks counted without training them. torch is imported when the first one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stepscope.models import registry
from stepscope.settings import RunSpec
from stepscope.train.source_settings import data_source_of

if TYPE_CHECKING:
    from stepscope.models.model_summary import NetworkSummary

_OWN_INPUT, _OWN_CLASSES = (3, 32, 32), 10


def count(model: str, norm: Literal["batch", "none"] = "batch") -> NetworkSummary:
    """Count a network for images of 32x32 and ten classes, whatever it was laid out for."""
    built = registry.build(model, classes=_OWN_CLASSES, norm=norm)
    from stepscope.models.model_summary import count_network

    return count_network(built, _OWN_INPUT, model)


def count_for(spec: RunSpec) -> NetworkSummary:
    """Count the network of a spec for the samples and the classes of its data."""
    from stepscope.data import dataset_registry  # needs numpy

    dataset = dataset_registry.find(spec.data, data_source_of(spec))
    built = registry.build(spec.model, classes=dataset.classes, norm=spec.norm)
    from stepscope.models.model_summary import count_network

    return count_network(built, dataset.shape, spec.model, dataset.tokens)

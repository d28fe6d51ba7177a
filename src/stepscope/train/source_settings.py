"""Build the `DataSource` of a run from its settings. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from stepscope.data.dataset import DataSource
from stepscope.models import registry
from stepscope.settings import RunSpec


def data_source_of(
    spec: RunSpec, data_dir: Path | None = None, *, training: bool = False
) -> DataSource:
    """Return the data source of a run. `data_dir` overrides the folder of the spec."""
    return DataSource(
        data_dir=Path(spec.data_dir) if data_dir is None else data_dir,
        source=spec.source,
        samples=spec.samples,
        validation=spec.validation,
        pipeline=spec.pipeline,
        augment_seed=spec.seed if training and spec.augment == "crop-flip" else None,
        shape=spec.input,
        on_bad_sample=spec.on_bad_sample,
        access=spec.access,
        endpoint_url=spec.endpoint_url,
        shuffle=spec.shuffle,
        workers=spec.workers,
        sequence_length=spec.sequence_length,
        tokens=_tokens_of(spec.model),
        vocabulary_dir=Path(spec.weights) if spec.weights else None,
    )


def _tokens_of(model: str) -> int:
    """Return the vocabulary size of a network; a network for images gets the default."""
    entry = registry.ZOO.get(model)
    return (entry.tokens if entry else None) or DataSource.tokens

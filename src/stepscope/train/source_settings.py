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
    entry = registry.ZOO.get(spec.model)
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
        tokens=(entry.tokens if entry else None) or DataSource.tokens,
        vocabulary_dir=Path(spec.weights) if spec.weights else None,
    )

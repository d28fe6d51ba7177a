"""What can be known to be wrong before anything long starts, without importing torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from stepscope.errors import MissingExtraError, RequestError, nearest
from stepscope.models import registry
from stepscope.spec import RunSpec


def check(spec: RunSpec) -> None:
    """Refuse a run that could only fail: unknown names, missing data, sizes that do not fit."""
    registry.check_name(spec.model)
    _check_source(spec.source)
    for package in ("torch", "numpy"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("training", package, "train")
    from stepscope.data import catalogue  # needs numpy, which a reader of runs may not have

    dataset = catalogue.find(spec.data)
    samples = dataset.count("train", spec.samples)
    if spec.batch_size * spec.accumulate > samples:
        times = f" x accumulate {spec.accumulate}" if spec.accumulate > 1 else ""
        raise RequestError(
            f"batch_size: wanted {spec.batch_size}{times} samples for a step, found {samples:,} "
            f"training samples in all ({spec.data}). Choose a smaller --batch-size."
        )
    dataset.check(Path(spec.data_dir))


def _check_source(source: str) -> None:
    known = ("memory", "local")
    if source in known:
        return
    if "://" in source:
        raise RequestError(
            f"source: {source.partition('://')[0]}:// is not something this version reads from. "
            "Use memory or local."
        )
    raise RequestError(f"source: wanted memory or local, found {source!r}.{nearest(source, known)}")

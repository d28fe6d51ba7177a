"""What can be known to be wrong before anything long starts, without importing torch."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.data.address import is_store_url, parse_address
from stepscope.errors import MachineError, MissingExtraError, RequestError, nearest
from stepscope.hardware.host import shared_memory_free_bytes
from stepscope.models import registry
from stepscope.spec import RunSpec
from stepscope.train.reading import reading_of
from stepscope.units import format_bytes

if TYPE_CHECKING:
    from stepscope.data.catalogue import DataSet, Split


def check(spec: RunSpec) -> None:
    """Refuse a run that could only fail: unknown names, missing data, sizes that do not fit."""
    registry.check_name(spec.model)
    _check_source(spec)
    for package in ("torch", "numpy"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("training", package, "train")
    from stepscope.data import catalogue  # needs numpy, which a reader of runs may not have

    dataset = catalogue.find(spec.data, reading_of(spec))
    samples = dataset.count("train", spec.samples)
    if spec.batch_size * spec.accumulate > samples:
        times, smaller = "", "--batch-size"
        if spec.accumulate > 1:
            times, smaller = f" x accumulate {spec.accumulate}", "--batch-size or --accumulate"
        raise RequestError(
            f"batch_size: wanted {spec.batch_size}{times} samples for a step, found {samples:,} "
            f"training samples in all ({spec.data}). Choose a smaller {smaller}."
        )
    _check_shared_memory(spec, math.prod(dataset.shape))
    if is_store_url(spec.source):
        _check_bucket(spec, dataset)
    elif spec.source != "synthetic":
        dataset.check(Path(spec.data_dir))


def _check_bucket(spec: RunSpec, dataset: DataSet) -> None:
    """Ask an object store whether it holds what the run wants."""
    if dataset.records is None:
        raise RequestError(
            f"source: {dataset.name} cannot be read from an object store; the data sets of small "
            "images can, such as cifar10. Use source local or memory."
        )
    for package, extra in (("obstore", "s3"), ("PIL", "train")):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"reading {spec.source}", package, extra)
    from stepscope.data import bucket

    splits: tuple[Split, ...] = ("train", "test") if spec.evaluate else ("train",)
    counts = {split: dataset.count(split, spec.samples) for split in splits}
    bucket.check(dataset.name, reading_of(spec), counts)


def _check_shared_memory(spec: RunSpec, values_per_sample: int) -> None:
    """Workers hand batches over in shared memory; where that is full torch waits for ever."""
    free_bytes = shared_memory_free_bytes()
    if spec.workers == 0 or free_bytes is None:
        return
    batch_bytes = spec.batch_size * values_per_sample * 4
    needed_bytes = batch_bytes * (spec.workers * spec.prefetch + 1)
    if needed_bytes > free_bytes:
        raise MachineError(
            f"{spec.workers} workers with {spec.prefetch} batches each take "
            f"{format_bytes(needed_bytes)} of /dev/shm, found {format_bytes(free_bytes)} free. "
            "Use fewer --workers, a smaller --prefetch or --batch-size, or enlarge /dev/shm."
        )


def _check_source(spec: RunSpec) -> None:
    known = ("memory", "local", "synthetic")
    if is_store_url(spec.source):
        parse_address(spec.source, spec.endpoint_url)
        return
    if spec.source not in known:
        raise RequestError(
            f"source: wanted memory, local, synthetic or a URL such as s3://BUCKET/PREFIX, found "
            f"{spec.source!r}.{nearest(spec.source, known)}"
        )
    for name, given in (("endpoint_url", spec.endpoint_url), ("access", spec.access == "stream")):
        if given:
            raise RequestError(
                f"{name}: wants a source that is an object store, found source {spec.source}."
            )

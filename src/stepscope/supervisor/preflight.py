"""Checks that find what is wrong before a long run starts, without importing torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.data import dataset_registry
from stepscope.data.object_store.store_url import is_store_url, parse_address
from stepscope.errors import MachineError, RequestError, nearest, require_packages
from stepscope.hardware.host import shared_memory_free_bytes
from stepscope.hardware.procfs import system_root
from stepscope.models import registry
from stepscope.models.pretrained import check_weights
from stepscope.settings import RunSpec
from stepscope.supervisor.required_conditions import check_requirements
from stepscope.train.source_settings import data_source_of
from stepscope.units import format_bytes

if TYPE_CHECKING:
    from stepscope.data.dataset import DataSet


def check(spec: RunSpec) -> None:
    """Raise if the run could only fail: unknown names, missing data, sizes that do not fit."""
    check_requirements(spec.require, system_root())
    registry.check_name(spec.model)
    if spec.weights is not None:
        check_weights(spec.model, Path(spec.weights))
    _check_source(spec)
    require_packages("training", "train", "torch", "numpy")
    registry.check_installed(spec.model)
    dataset = dataset_registry.find(spec.data, data_source_of(spec))
    _check_model_takes(spec, dataset)
    samples = dataset.count("train", spec.samples)
    if spec.validation:
        from stepscope.data.sample_order import hold_out

        hold_out(samples, spec.validation)
        samples -= spec.validation
    if spec.batch_size * spec.accumulate > samples:
        times, smaller = "", "--batch-size"
        if spec.accumulate > 1:
            times, smaller = f" x accumulate {spec.accumulate}", "--batch-size or --accumulate"
        raise RequestError(
            f"batch_size: wanted {spec.batch_size}{times} samples for a step, found {samples:,} "
            f"training samples ({spec.data}). Choose a smaller {smaller}."
        )
    _check_shared_memory(spec, dataset.input_bytes)
    if is_store_url(spec.source):
        _check_bucket(spec, dataset)
    elif spec.source != "synthetic":
        dataset.check(Path(spec.data_dir))


def require_one_process(spec: RunSpec, what: str) -> None:
    """Raise RequestError if several processes are requested for what only one can do."""
    if spec.processes > 1:
        raise RequestError(
            f"processes: {what} needs 1 process, found {spec.processes}. Use several with "
            "`stepscope run` or `stepscope sweep`."
        )


def _check_model_takes(spec: RunSpec, dataset: DataSet) -> None:
    """Raise if an image network is to train on text, or a text network on images."""
    entry = registry.ZOO.get(spec.model)
    if entry is None or (entry.tokens is None) == (dataset.tokens is None):
        return
    takes, has, use = "images", "texts", "a model such as mobilebert-small"
    if entry.tokens is not None:
        takes, has, use = has, takes, "--data text"
    raise RequestError(
        f"model {spec.model} takes {takes}, but the samples of {spec.data} are {has}. Use {use}."
    )


def _check_bucket(spec: RunSpec, dataset: DataSet) -> None:
    """Raise if the object store does not hold the data set."""
    if dataset.records is None:
        raise RequestError(
            f"source: {dataset.name} cannot be read from an object store; small images such as "
            "cifar10 can. Use source local or memory."
        )
    require_packages(f"reading {spec.source}", "s3", "obstore")
    require_packages(f"reading {spec.source}", "train", "PIL")
    from stepscope.data.object_store import bucket

    counts = {split: dataset.count(split, spec.samples) for split in spec.splits_read}
    bucket.check(dataset.name, data_source_of(spec), counts)


def _check_shared_memory(spec: RunSpec, input_bytes: int) -> None:
    """Raise if /dev/shm is too small for the workers' batches: torch would wait forever."""
    free_bytes = shared_memory_free_bytes()
    if spec.workers == 0 or free_bytes is None:
        return
    batch_bytes = spec.batch_size * input_bytes
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
                f"{name}: needs an object store as the source, found source {spec.source}."
            )

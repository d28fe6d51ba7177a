"""A data set put into a store for a lab, below a prefix of its own, in both layouts."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from stepscope.data.address import Address, parse_address
from stepscope.errors import DataError, MissingExtraError, RequestError
from stepscope.spec import RunSpec
from stepscope.train.reading import reading_of

if TYPE_CHECKING:
    from stepscope.data.object_store import ObjectStore

PREFIX = "stepscope-lab-storage"

_OF_A_PUT = re.compile(r"(train|test)/(\d{6,}\.png|shard-\d{6,}\.tar)")


def stock(base: Address, spec: RunSpec, say: Callable[[str], None]) -> dict[str, Address]:
    """Put the samples of a spec under `base` unless they are there; return where, by layout.

    What an earlier lab has put there whole is used as it is, and what one has begun is gone on
    with.

    Raises:
        RequestError: the data cannot be put into a store, or somebody else's objects are there.
        DataError: the store cannot be reached, or the data not be had.
        MissingExtraError: the client is not installed.
    """
    for package, extra in (("obstore", "s3"), ("PIL", "train")):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"using {base}", package, extra)
    from stepscope.data import catalogue  # needs numpy
    from stepscope.data.manifest import Layout
    from stepscope.data.object_store import ObjectStore
    from stepscope.data.put import put

    dataset = catalogue.find(spec.data, reading_of(spec))
    records = dataset.records
    if records is None:
        raise RequestError(f"{spec.data} cannot be put into a store: wants one such as cifar10.")
    samples = dataset.count("train", spec.samples)
    places: dict[str, Address] = {}
    for layout in get_args(Layout):
        url = f"{base.url}/{PREFIX}/{spec.data}-{samples}/{layout}"
        address = places[layout] = parse_address(url, base.endpoint_url)
        store = ObjectStore(address)
        if _is_whole(store, spec.data, samples):
            say(f"{address} has the data already")
            continue
        say(f"putting {samples:,} samples of {spec.data} into {address}")
        put(
            spec.data,
            lambda split: records.load(split, Path(spec.data_dir), samples),
            layout,
            store,
            say,
        )
    return places


def _is_whole(store: ObjectStore, data: str, samples: int) -> bool:
    """Say whether what a lab puts is there; what nobody of us has put is not written over."""
    from stepscope.data.download import fetch_manifest
    from stepscope.data.manifest import FILE

    there = store.listing()
    if FILE in there:
        manifest = fetch_manifest(store)
        if (manifest.data, manifest.count("train")) == (data, samples):
            return True
        raise DataError(
            f"wanted {samples:,} samples of {data} in {store.address}, found "
            f"{manifest.count('train'):,} of {manifest.data}. Name another prefix with --source."
        )
    foreign = next((key for key in there if not _OF_A_PUT.fullmatch(key)), None)
    if foreign is not None:
        raise RequestError(
            f"source: wanted nothing but this lab's own data in {store.address}, found {foreign}. "
            "Name another prefix with --source."
        )
    return False

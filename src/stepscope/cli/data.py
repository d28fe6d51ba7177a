"""`stepscope data`: get and verify data sets, and put them into a bucket."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from stepscope.cli.streams import AsJson
from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSource, Verified, VerifiedCache
from stepscope.data.object_store.store_url import parse_address
from stepscope.errors import DataError, RequestError
from stepscope.records.types import (
    DataCheckAnswer,
    DataPutAnswer,
    VerifiedFile,
    VerifiedFolder,
)
from stepscope.units import format_bytes

app = App(name="data", help="Get and verify data sets, and put them into a bucket.")

DataDir = Annotated[Path, Parameter(help="folder where data sets lie")]


@app.command
def get(name: str, /, *, data_dir: DataDir = Path("data"), json: AsJson = False) -> int:
    """Fetch a data set into the data folder, unless it is there and valid.

    Parameters
    ----------
    name
        A data set, such as cifar10.
    """
    dataset = dataset_registry.find(name, DataSource(data_dir=data_dir))
    dataset.get(data_dir, lambda line: print(line, file=sys.stderr))
    return verify(name, data_dir=data_dir, json=json)


@app.command
def verify(name: str, /, *, data_dir: DataDir = Path("data"), json: AsJson = False) -> int:
    """Check every byte of a data set against its published checksums.

    Parameters
    ----------
    name
        A data set, such as cifar10.
    """
    dataset = dataset_registry.find(name, DataSource(data_dir=data_dir))
    checked, cache = dataset.verify(data_dir), dataset.verify_cache()
    if json:
        answer: DataCheckAnswer = {
            "data": name,
            "data_dir": str(data_dir),
            "files": _files(checked),
            "cache": None if cache is None else _folder(cache),
        }
        print(json_module.dumps(answer))
    else:
        for found in checked:
            print(f"{found.status:10} {found.file}  {found.detail}")
        if cache is not None:
            _print_cache(cache)
    wrong = [found for found in checked if not found.ok]
    if not wrong:
        return 0
    print(
        f"stepscope: {len(wrong)} of {len(checked)} files of {name} in {data_dir} are not as "
        f"published. Fetch them with: stepscope data get {name} --data-dir {data_dir}",
        file=sys.stderr,
    )
    return DataError.exit_code


def _files(checked: Iterable[Verified]) -> list[VerifiedFile]:
    return [
        {"file": found.file, "status": found.status, "detail": found.detail} for found in checked
    ]


def _folder(cache: VerifiedCache) -> VerifiedFolder:
    return {
        "folder": str(cache.folder),
        "size_bytes": cache.size_bytes,
        "files": _files(cache.files),
    }


def _print_cache(cache: VerifiedCache) -> None:
    """Print the folder, its size, and its damaged files."""
    held = f"{len(cache.files)} files, {format_bytes(cache.size_bytes)}" if cache.files else "empty"
    print(f"{'cache':10} {cache.folder}  {held}")
    for found in cache.files:
        if not found.ok:
            detail = f"{found.detail}; drawn again when needed"
            print(f"{found.status:10} {cache.folder / found.file}  {detail}")


@app.command
def put(
    name: str,
    url: str,
    /,
    *,
    layout: Annotated[
        Literal["objects", "shards"],
        Parameter(help="one object a sample, or tar shards of 1,000 (the WebDataset layout)"),
    ] = "objects",
    samples: Annotated[
        int | None, Parameter(help="put this many training samples, and a fifth as many for tests")
    ] = None,
    endpoint_url: Annotated[
        str | None, Parameter(help="address of an S3-compatible object store")
    ] = None,
    data_dir: DataDir = Path("data"),
    json: AsJson = False,
) -> int:
    """Put a data set into a bucket; what is there and right is not sent again.

    Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or from a
    profile (AWS_PROFILE, ~/.aws/credentials).

    Parameters
    ----------
    name
        A data set of small images, such as cifar10.
    url
        Where to, such as s3://my-bucket/cifar10.
    """
    from stepscope.data.object_store.store_client import ObjectStore
    from stepscope.data.object_store.upload import put as put_into

    address = parse_address(url, endpoint_url)
    records = dataset_registry.find(name).records
    if records is None:
        raise RequestError(f"{name} cannot be put into a bucket: wants one such as cifar10.")
    done = put_into(
        name,
        lambda split: records.load(split, data_dir, samples),
        layout,
        ObjectStore(address),
        lambda line: print(line, file=sys.stderr),
    )
    if json:
        answer: DataPutAnswer = {
            "data": name,
            "url": address.url,
            "layout": layout,
            "sent": done.sent,
            "kept": done.kept,
            "sent_bytes": done.sent_bytes,
            "retries": done.retries,
        }
        print(json_module.dumps(answer))
    else:
        print(
            f"{name} is in {address} as {layout}: {done.sent:,} objects sent "
            f"({format_bytes(done.sent_bytes)}), {done.kept:,} were there already. "
            f"Train from it with: stepscope run --data {name} --source {address.url}"
        )
    return 0

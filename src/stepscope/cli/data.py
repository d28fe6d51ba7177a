"""`stepscope data`: get and verify data sets, and put them into a bucket."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from stepscope.cli.streams import AsJson
from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSource
from stepscope.data.object_store.store_url import parse_address
from stepscope.errors import DataError, RequestError
from stepscope.records.types import DataCheckAnswer, DataPutAnswer, VerifiedFolder
from stepscope.units import format_bytes

app = App(name="data", help="Get and verify data sets, and put them into a bucket.")

DataDir = Annotated[Path, Parameter(help="folder of the data sets")]


@app.command
def get(name: str, /, *, data_dir: DataDir = Path("data"), json: AsJson = False) -> int:
    """Download a data set, unless the data folder has valid files.

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
    wrong = [found for found in checked if found["status"] != "ok"]
    if json:
        answer: DataCheckAnswer = {
            "data": name,
            "data_dir": str(data_dir),
            "files": checked,
            "cache": cache,
        }
        print(json_module.dumps(answer))
    else:
        for found in checked:
            print(f"{found['status']:10} {found['file']}  {found['detail']}")
        if cache is not None:
            _print_cache(cache)
        if not wrong:
            print(f"All {len(checked)} files of {name} in {data_dir} are valid.")
    if not wrong:
        return 0
    print(
        f"stepscope: {len(wrong)} of {len(checked)} files of {name} in {data_dir} are missing or "
        f"damaged. Fetch them with: stepscope data get {name} --data-dir {data_dir}",
        file=sys.stderr,
    )
    return DataError.exit_code


def _print_cache(cache: VerifiedFolder) -> None:
    """Print the folder, its size, and its damaged files."""
    size = f"{len(cache['files'])} files, {format_bytes(cache['size_bytes'])}"
    print(f"{'cache':10} {cache['folder']}  {size if cache['files'] else 'empty'}")
    for found in cache["files"]:
        if found["status"] != "ok":
            detail = f"{found['detail']}; drawn again when needed"
            print(f"{found['status']:10} {cache['folder']}/{found['file']}  {detail}")


@app.command
def put(
    name: str,
    url: str,
    /,
    *,
    layout: Literal["objects", "shards"] = "objects",
    samples: int | None = None,
    endpoint_url: str | None = None,
    data_dir: DataDir = Path("data"),
    json: AsJson = False,
) -> int:
    """Upload a data set to a bucket; valid objects are not sent again.

    Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or from a
    profile (AWS_PROFILE, ~/.aws/credentials).

    Parameters
    ----------
    name
        A data set of small images, such as cifar10.
    url
        The bucket and prefix, such as s3://my-bucket/cifar10.
    layout
        One object per sample, or WebDataset tar shards of 1,000 samples.
    samples
        Upload this many training samples, and a fifth as many test samples.
    endpoint_url
        Address of an S3-compatible object store.
    """
    from stepscope.data.object_store.store_client import ObjectStore
    from stepscope.data.object_store.upload import put as put_into

    address = parse_address(url, endpoint_url)
    records = dataset_registry.find(name).records
    if records is None:
        raise RequestError(f"{name} cannot be put into a bucket. Use cifar10 or shapes.")
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
            f"({format_bytes(done.sent_bytes)}), {done.kept:,} already there.\n"
            f"Train from it with: stepscope run --data {name} --source {address.url}"
        )
    return 0

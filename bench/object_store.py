"""How fast small objects come from a server on loopback: against boto3, and against shards."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from _alternate import alternate, report

from stepscope.data.datasets import shapes
from stepscope.data.object_store.manifest import Layout, Manifest
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.data.object_store.store_url import Address
from stepscope.data.object_store.stored_samples import StoredSamples, fetch_objects
from stepscope.data.object_store.upload import put

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
from s3_server import BUCKET, KEY, SECRET, Server

SAMPLES, BATCH, ROUNDS = 1000, 64, 15
LEAST_AGAINST_BOTO3, LEAST_OF_SHARDS = 5.0, 1.0


def main() -> int:
    try:
        import boto3
    except ImportError:
        print("this compares with boto3, which is not installed: .venv/bin/pip install boto3")
        return 1
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        server = Server(Path(folder) / "s3")
        ending.callback(server.kill)
        server.start()
        url = f"http://127.0.0.1:{server.port}"
        objects, manifest = stored(url, "objects")
        shards, of_shards = stored(url, "shards")
        keys = [entry.key for entry in manifest.train]
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")

        def by_boto3() -> None:
            for key in keys:
                client.get_object(Bucket=BUCKET, Key=f"objects/{key}")["Body"].read()

        def by_object() -> None:
            for start in range(0, SAMPLES, BATCH):
                some = manifest.train[start : start + BATCH]
                objects.get([each.key for each in some], [each.check for each in some])

        def ignore(stats: RequestStats) -> None:
            pass

        in_objects = StoredSamples(partial(fetch_objects, objects, ignore), manifest.train, SAMPLES)

        def in_shards() -> StoredSamples:  # a new one each round: it keeps what it has read
            return StoredSamples(partial(fetch_objects, shards, ignore), of_shards.train, SAMPLES)

        compared = alternate(by_boto3, by_object, ROUNDS, warm_up=1)
        missed = report(
            f"objects/s of our client / one boto3 get_object after the other, {SAMPLES} of 3 KB",
            compared,
            f"at least {LEAST_AGAINST_BOTO3:g}",
            compared.ratio >= LEAST_AGAINST_BOTO3,
        )
        compared = alternate(
            lambda: take_all(lambda: in_objects), lambda: take_all(in_shards), ROUNDS, warm_up=1
        )
        return max(
            missed,
            report(
                f"samples/s from a shard / from objects, {SAMPLES} samples decoded",
                compared,
                f"more than {LEAST_OF_SHARDS:g}",
                compared.ratio > LEAST_OF_SHARDS,
            ),
        )


def stored(url: str, layout: Layout) -> tuple[ObjectStore, Manifest]:
    store = ObjectStore(Address(f"s3://{BUCKET}/{layout}", url))
    done = put("shapes", lambda split: shapes.load(split, Path(), SAMPLES), layout, store, str)
    return store, done.manifest


def take_all(make: Callable[[], StoredSamples]) -> None:
    samples = make()
    for start in range(0, SAMPLES, BATCH):
        samples.take(np.arange(start, min(start + BATCH, SAMPLES)))


if __name__ == "__main__":
    sys.exit(main())

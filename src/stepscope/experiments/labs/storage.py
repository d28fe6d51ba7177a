"""Where should the data lie? The same training from memory, from disk and from an object store.

An epoch is what the later ones took on average: the first carries the start of everything. Cold
files are made cold before every epoch. A download is made once, by the run that comes first, and
is told beside the epochs of every run that had it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.data.address import Address
from stepscope.errors import MachineError
from stepscope.experiments.labs import Finding, Tools, found
from stepscope.experiments.labs.cache import not_cold
from stepscope.experiments.labs.own_server import serving
from stepscope.experiments.labs.plan import Plan
from stepscope.experiments.labs.sheet import Setting
from stepscope.experiments.labs.stocked import stock
from stepscope.experiments.labs.tried import Tried, curves_of, try_settings
from stepscope.experiments.trial_folder import temporary_folder
from stepscope.records import schema
from stepscope.records.reader import Run
from stepscope.records.table import read_table
from stepscope.stats import known_mean, known_median
from stepscope.units import format_count, format_duration, format_share

_PARTS = ("loading_s", "training_s", "other_s", "total_s")
_LATENCIES = ("p50_s", "p95_s", "p99_s")
_TRAINING_DATA_DOWNLOADED = 10  # the type of a row in records.csv
_OWN_SERVER = (
    "a server on this machine: what distance costs is not in it; `--source` names your own store"
)

Row = Mapping[str, Any]


def investigate(plan: Plan, folder: Path, tools: Tools) -> Finding:
    """Train from every place with every number of workers."""
    with contextlib.ExitStack() as opened:
        scratch = Path(opened.enter_context(temporary_folder(folder)))
        store, missing = _open_store(plan, scratch, tools, opened)
        settings = tuple(_settings(plan.settings, store, scratch / "downloaded"))
        tried, lacking = try_settings(replace(plan, settings=settings), folder, tools)
    cold = [each for each in tried if each.setting.values.get("page_cache", "keep") != "keep"]
    rows = _rows(tried)
    known = [row for row in rows if row["total_s"] is not None]
    answer = _answer(known, plan) if known else "No answer: no training completed."
    missing += [*lacking, *not_cold(cold)]
    finding = found(answer, bool(known), rows, missing, curves_of(tried))
    finding.figures["store"] = {layout: str(address) for layout, address in store.items()}
    if store and plan.store is None:
        notes = (_OWN_SERVER, plan.told()["note"])
        finding.figures["note"] = "; ".join(note for note in notes if note)
    return finding


def _open_store(
    plan: Plan, scratch: Path, tools: Tools, opened: contextlib.ExitStack
) -> tuple[dict[str, Address], list[dict[str, str]]]:
    """Return where the data lies in the store by layout, or why there is no store."""
    if plan.store is not None:
        return stock(plan.store, plan.spec, tools.say), []
    try:
        server = opened.enter_context(serving(scratch / "served"))
        return stock(server, plan.spec, tools.say), []
    except MachineError as error:
        return {}, [{"name": "object store", "reason": str(error)}]


def _settings(
    settings: Sequence[Setting], store: Mapping[str, Address], downloaded: Path
) -> Iterator[Setting]:
    """Put the store's addresses in the place of the sheet's words for them."""
    for setting in settings:
        place = setting.values["source"]
        if place in ("memory", "local"):
            yield setting
        elif place in store:
            address = store[place]
            at = {"source": address.url, "endpoint_url": address.endpoint_url}
            if setting.values["access"] == "download":
                at["data_dir"] = str(downloaded)
            yield Setting({**setting.values, **at}, setting.shown)


def _rows(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    download_s = known_median(
        download_s for each in tried for run in each.runs for download_s in _downloads_s(run)
    )
    return [_row(each, download_s) for each in tried]


def _row(tried: Tried, download_s: float | None) -> dict[str, Any]:
    """Make a row; what does not apply to its place is not in it."""
    set_up = tried.row()
    epochs = list(tried.curve())
    later = epochs[1:] or epochs
    row = {"tried": f"{set_up['place']} with {_workers(set_up)}", **set_up}
    row |= {part: known_mean(epoch[part] for epoch in later) for part in _PARTS}
    requests = [run.summary["requests"] for run in tried.runs if run.summary.get("requests")]
    if requests:
        row |= {f"request_{p}": known_median(each[p] for each in requests) for p in _LATENCIES}
    if set_up.get("access") == "download":
        row["download_s"] = download_s
    return row


def _downloads_s(run: Run) -> Iterator[float]:
    """Go through the downloads of training data that a run made whole, and did not find there."""
    requests = run.summary.get("requests")
    for row in read_table(run.path / schema.RECORDS).rows():
        whole = requests is not None and requests["count"] >= row["value1"]
        if row["type"] == _TRAINING_DATA_DOWNLOADED and whole:
            yield row["duration"]


def _answer(known: Sequence[Row], plan: Plan) -> str:
    best: dict[str, Row] = {}
    for row in known:
        place = row["place"]
        if place not in best or row["total_s"] < best[place]["total_s"]:
            best[place] = row
    said = [
        f"{format_duration(row['total_s'])} from {row['tried']}, "
        f"{format_share(row['loading_s'] / row['total_s'])} of it waiting"
        for row in sorted(best.values(), key=lambda row: float(row["total_s"]))
    ]
    sentences = [f"An epoch takes at best {'; '.join(said)}", *_streams(known), *_download(best)]
    if plan.repeats == 1:
        sentences.append("One run each: those that lie close cannot be told apart")
    return ". ".join(sentences) + "."


def _streams(known: Sequence[Row]) -> Iterator[str]:
    """Say what workers do to the waiting for a store's answers, and how long those take."""
    by_place: dict[str, list[Row]] = {}
    for row in known:
        if row.get("access") == "stream":
            by_place.setdefault(row["place"], []).append(row)
    for place, rows in by_place.items():
        fewest, most = (chosen(rows, key=lambda row: int(row["workers"])) for chosen in (min, max))
        ends = [fewest] if fewest is most else [fewest, most]
        waits = [f"{format_duration(row['loading_s'])} with {_workers(row)}" for row in ends]
        yield (
            f"Reading from {place}, an epoch waits {' and '.join(waits)}, and a request takes "
            f"{format_duration(ends[0]['request_p50_s'])} (median)"
        )


def _workers(row: Row) -> str:
    return format_count(int(row["workers"]), "worker")


def _download(best: Mapping[str, Row]) -> Iterator[str]:
    """Say from which epoch on a download is worth its time."""
    streamed = [row for row in best.values() if row.get("access") == "stream"]
    downloaded = next((row for row in best.values() if row.get("download_s") is not None), None)
    if downloaded is None or not streamed:
        return
    fastest = min(streamed, key=lambda row: float(row["total_s"]))
    took = f"Downloading first takes {format_duration(downloaded['download_s'])}"
    gained_s = fastest["total_s"] - downloaded["total_s"]
    if gained_s <= 0:
        yield f"{took} and gains nothing on {fastest['tried']}"
    else:
        epochs = int(downloaded["download_s"] // gained_s) + 1
        yield f"{took} and pays from {format_count(epochs, 'epoch')} on, against {fastest['tried']}"

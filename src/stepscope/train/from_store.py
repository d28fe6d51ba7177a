"""What a training tells of an object store: retried requests, a download's progress and its row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from stepscope.data.bucket import FromBucket
from stepscope.data.download import Progress
from stepscope.data.reading import Reading
from stepscope.data.request_times import summarize
from stepscope.data.samples import Split
from stepscope.measure.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog
from stepscope.records.folder import RunFolder
from stepscope.train.lifetime import StopRequest
from stepscope.train.telling import Telling

PROGRESS_EVERY_S = 0.5

# Row types of the published record format (docs/run-folder.md).
_ROW_TYPES: dict[Split, int] = {"train": 10, "test": 11}


@dataclass(frozen=True)
class RunJournal:
    """Write events into a run's folder, from whatever process has them."""

    folder: Path
    origin_ns: int

    def __call__(self, event: str, detail: Mapping[str, Any]) -> None:
        """Append an event, timed from the run's origin."""
        RunFolder(self.folder).add_event(event, seconds(now_ns() - self.origin_ns), **detail)


def told_of(reading: Reading, telling: Telling | None, stop: StopRequest | None) -> Reading:
    """Let a run hear what reading its data meets; a request to stop ends a download."""
    if telling is None:
        return reading
    told_at = -PROGRESS_EVERY_S

    def report(split: Split, progress: Progress) -> None:
        nonlocal told_at
        if stop is not None:
            stop.check()
        whole = progress.done_bytes == progress.total_bytes
        if whole or monotonic() - told_at >= PROGRESS_EVERY_S:
            told_at = monotonic()
            telling.send(
                {
                    "type": "download",
                    "split": split,
                    "done_bytes": progress.done_bytes,
                    "total_bytes": progress.total_bytes,
                    "left_s": progress.left_s,
                }
            )

    journal = RunJournal(telling.folder.path, telling.origin_ns)
    return replace(reading, journal=journal, report=report)


def record_downloads(folder: Path, buckets: Mapping[Split, FromBucket]) -> None:
    """Write the rows of finished downloads; a resumed run has its rows already."""
    lines = (folder / schema.RECORDS).read_text(encoding="utf-8").splitlines()
    recorded = {line.partition(",")[0] for line in lines}
    with CsvLog(folder / schema.RECORDS) as records:
        for split, bucket in buckets.items():
            done = bucket.download
            if done is not None and str(_ROW_TYPES[split]) not in recorded:
                numbers = (done.start_unix_s, done.loading_s, done.total_s, done.items, 0)
                row = ",".join(f"{number:f}" for number in numbers)
                records.append(f"{_ROW_TYPES[split]},0,{row}")


def requests_of(buckets: Iterable[FromBucket]) -> dict[str, Any] | None:
    """Return how many requests there were and how long they took; None without a bucket."""
    return summarize([bucket.requests.counts() for bucket in buckets])

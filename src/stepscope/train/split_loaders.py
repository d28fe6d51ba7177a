"""The loaders of a training's splits, and what it reports of an object store."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

from torch.utils.data import Dataset, get_worker_info

from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSource, Split
from stepscope.data.datasets.synthetic import DirectLoader, SyntheticBatches
from stepscope.data.loaders.dataloader import Notice, RecoveringLoader, make_loader
from stepscope.data.loaders.worker_pool import Fallback, WorkerPool, end_worker_that_cannot_send
from stepscope.data.object_store.bucket import StoredSplit
from stepscope.data.object_store.request_latency import summarize
from stepscope.data.object_store.store_client import RequestStats
from stepscope.data.object_store.store_process import DownloadProgress
from stepscope.data.record_dataset import open_records
from stepscope.data.sample_order import BatchKey, EpochOrder, hold_out
from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.hardware.page_cache import make_cold
from stepscope.meter.clock import now_ns, own_cpu_ns, seconds, worker_cpu_ns
from stepscope.meter.step_rows import LoadTiming
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import RequestLatency
from stepscope.settings import RunSpec
from stepscope.train.epoch_plan import Stage, plan_stages
from stepscope.train.recorder import PROGRESS_EVERY_S, RunMessages
from stepscope.train.source_settings import data_source_of
from stepscope.train.stop_request import StopRequest


class TimedDataset(Dataset[tuple[Any, LoadTiming]]):
    """Return each batch of a data set with its load time, measured in the process that loads it.

    A delay for each sample simulates a slower pipeline or disk.
    """

    def __init__(self, dataset: Dataset[Any], delay_s: float = 0.0) -> None:
        self.dataset, self._delay_s = dataset, delay_s

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: BatchKey) -> tuple[Any, LoadTiming]:
        info = get_worker_info()
        cpu_ns = own_cpu_ns if info is None else worker_cpu_ns
        cpu_start, start = cpu_ns(), now_ns()
        if self._delay_s:
            sleep(self._delay_s * len(key.indices))
        item = self.dataset[key]
        wall, cpu = now_ns() - start, cpu_ns() - cpu_start
        return item, LoadTiming(-1 if info is None else info.id, start, wall, cpu)


@dataclass(frozen=True)
class LoadedSplit:
    """The loader of a split, its order, and the files or bucket that it reads."""

    loader: RecoveringLoader | DirectLoader
    order: EpochOrder
    dataset: TimedDataset
    files: tuple[Path, ...] = ()
    bucket: StoredSplit | None = None


@dataclass(frozen=True)
class LoaderListeners:
    """Callbacks of the loaders: for fewer workers, notices about batches, and an object store.

    `watch_store` adds the callbacks for downloads and retries to a data source.
    """

    on_fallback: Callable[[Fallback], None] = lambda fallback: None
    on_notice: Callable[[Notice], None] = lambda notice: None
    watch_store: Callable[[DataSource], DataSource] = lambda source: source


_NO_LISTENERS = LoaderListeners()


def open_split(
    spec: RunSpec,
    split: Split,
    data_dir: Path,
    worker_pool: WorkerPool,
    listeners: LoaderListeners = _NO_LISTENERS,
) -> LoadedSplit:
    """Return the loader of a split."""
    if spec.source == "synthetic":
        return _synthetic(spec, split, data_dir)
    training = split == "train"
    reading = listeners.watch_store(data_source_of(spec, data_dir, training=training))
    dataset = dataset_registry.find(spec.data, reading)
    open_batches = dataset.open_batches or partial(open_records, dataset)
    opened = open_batches(split, reading)
    held = hold_out(opened.samples, spec.validation) if training else None
    order = EpochOrder(
        opened.samples - (spec.validation if training else 0),
        spec.batch_size,
        spec.seed,
        spec.shuffle if training else "none",
        chosen=None if held is None else ~held,
    )
    timed = TimedDataset(opened.batches, (spec.pipeline_delay_ms + spec.source_delay_ms) / 1000)
    loader = _loader(spec, split, timed, order, worker_pool, listeners.on_notice)
    return LoadedSplit(loader, order, timed, opened.files, opened.bucket)


def held_out_split(
    spec: RunSpec,
    train: LoadedSplit,
    worker_pool: WorkerPool,
    listeners: LoaderListeners = _NO_LISTENERS,
) -> LoadedSplit:
    """Return the held-out samples, not augmented, from the data that the training split opened."""
    assert train.order.chosen is not None, "some samples are held out"
    held = ~train.order.chosen
    order = EpochOrder(
        spec.validation, spec.batch_size, spec.seed, "none", chosen=held, augment=False
    )
    return LoadedSplit(
        _loader(spec, "validation", train.dataset, order, worker_pool, listeners.on_notice),
        order,
        train.dataset,
    )


def _loader(
    spec: RunSpec,
    split: str,
    timed: TimedDataset,
    order: EpochOrder,
    worker_pool: WorkerPool,
    on_notice: Callable[[Notice], None],
) -> RecoveringLoader:
    make = partial(
        make_loader,
        timed,
        prefetch=spec.prefetch,
        persistent_workers=spec.persistent_workers,
        pin_memory=_pins_memory(spec),
        on_worker_start=start_worker,
    )
    return RecoveringLoader(split, order, make, worker_pool, on_notice)


def start_worker(worker: int) -> None:
    """Set up a loader worker: ignore Ctrl-C, and end when the training process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())
    end_worker_that_cannot_send()
    # When memory is short, the kernel kills a worker first: the run continues without a worker, not
    # without the training. Without that file (not Linux) or permission, the kernel chooses.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _synthetic(spec: RunSpec, split: Split, data_dir: Path) -> LoadedSplit:
    dataset = dataset_registry.find(spec.data, data_source_of(spec, data_dir))
    timed = TimedDataset(
        SyntheticBatches(
            dataset.blank(spec.batch_size),
            dataset.classes,
            spec.seed,
            pin_memory=_pins_memory(spec),
        )
    )
    # All samples are alike: shuffling would only cost time.
    samples = dataset.count(split, spec.samples) - spec.validation
    order = EpochOrder(samples, spec.batch_size, spec.seed, "none")
    return LoadedSplit(DirectLoader(timed, order), order, timed)


def _pins_memory(spec: RunSpec) -> bool:
    return spec.pin_memory and spec.device.partition(":")[0] == "cuda"


def plan(
    spec: RunSpec, train: LoadedSplit, *, evaluation_split: Literal["test", "validation"] | None
) -> list[Stage]:
    """Return the stages of a run over the training split."""
    return plan_stages(
        spec.epochs,
        -(-len(train.order) // spec.accumulate),
        spec.max_steps,
        evaluation_split=evaluation_split,
        at_end_only=evaluation_split == "test" and spec.test_at == "end",
    )


def cold_epoch_hook(
    spec: RunSpec, files: Sequence[Path], messages: RunMessages
) -> Callable[[int], None]:
    """Return a callback for the start of each training epoch, which may empty the page cache."""

    def before_epoch(epoch: int) -> None:
        if spec.page_cache == "cold-epochs" or (spec.page_cache == "cold" and epoch == 1):
            messages.event("page_cache", epoch=epoch, **make_cold(files))

    return before_epoch


# Row types of the published record format (docs/reference/run-folder.md).
_ROW_TYPES: dict[Split, int] = {"train": 10, "test": 11}


def _record_retries(folder: Path, origin_ns: int, split: Split, stats: RequestStats) -> None:
    """Write retried requests to the events of a run folder, from any process."""
    RunFolder(folder).add_event(
        "requests_retried",
        seconds(now_ns() - origin_ns),
        split=split,
        retries=stats.retries,
        waited_s=round(stats.waited_s, 3),
        reasons=dict(stats.retried),
    )


def listeners_of(messages: RunMessages, stop: StopRequest) -> LoaderListeners:
    """Return listeners that report to the run; a stop request ends a download."""
    reported_at = -PROGRESS_EVERY_S

    def report(split: Split, progress: DownloadProgress) -> None:
        nonlocal reported_at
        stop.check()
        whole = progress.done_bytes == progress.total_bytes
        if whole or monotonic() - reported_at >= PROGRESS_EVERY_S:
            reported_at = monotonic()
            messages.send(
                {
                    "type": "download",
                    "split": split,
                    "done_bytes": progress.done_bytes,
                    "total_bytes": progress.total_bytes,
                    "left_s": progress.left_s,
                }
            )

    on_retry = partial(_record_retries, messages.folder.path, messages.origin_ns)
    return LoaderListeners(
        messages.fallback,
        messages.notice,
        lambda source: replace(source, on_retry=on_retry, report=report),
    )


def record_downloads(folder: Path, buckets: Mapping[Split, StoredSplit]) -> None:
    """Write the rows of finished downloads that are not yet recorded."""
    lines = (folder / schema.RECORDS).read_text(encoding="utf-8").splitlines()
    recorded = {line.partition(",")[0] for line in lines}
    with CsvLog(folder / schema.RECORDS) as records:
        for split, bucket in buckets.items():
            done = bucket.download
            if done is not None and str(_ROW_TYPES[split]) not in recorded:
                numbers = (done.start_unix_s, done.loading_s, done.total_s, done.items, 0)
                row = ",".join(f"{number:f}" for number in numbers)
                records.append(f"{_ROW_TYPES[split]},0,{row}")


def requests_of(buckets: Iterable[StoredSplit]) -> RequestLatency | None:
    """Return the number and latency of requests; None without a bucket."""
    return summarize([bucket.requests.counts() for bucket in buckets])

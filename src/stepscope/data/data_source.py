"""The data settings of a run, in plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stepscope.data.object_store.download import DownloadProgress
    from stepscope.data.samples import Split

Pipeline = Literal["batch", "sample"]
Access = Literal["download", "stream"]
OnBadSample = Literal["skip", "fail"]


@dataclass(frozen=True)
class DataSource:
    """Where a data set is, how many samples to take, and how to process them.

    Images are resized to `shape`; None keeps the shape of the data set. `augment_seed` is for
    training batches; None does not augment. `validation` training samples are held out and never
    trained on.

    For texts: `sequence_length` is the maximum number of tokens, `tokens` the vocabulary size of
    the network, `vocabulary_dir` a folder with a vocabulary to use instead of training one.

    For object stores: `journal` receives events in any process, so it must be picklable; `report`
    receives the progress of a download, and may raise to end it.
    """

    data_dir: Path = Path("data")
    source: str = "memory"
    samples: int | None = None
    validation: int = 0
    shape: tuple[int, ...] | None = None
    pipeline: Pipeline = "batch"
    augment_seed: int | None = None
    on_bad_sample: OnBadSample = "skip"
    access: Access = "download"
    endpoint_url: str | None = None
    shuffle: str = "full"
    workers: int = 0
    sequence_length: int = 128
    tokens: int = 30_522
    vocabulary_dir: Path | None = None
    journal: Callable[[str, Mapping[str, Any]], None] | None = None
    report: Callable[[Split, DownloadProgress], None] | None = None

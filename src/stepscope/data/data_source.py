"""How the samples of a data set are wanted: all that a run says about its data, in plain values."""

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
    """Where a data set lies, how much of it is taken, and what is made of each sample.

    `shape` is what images are brought to, None for the data set's own. `augment_seed` is for
    training batches; None leaves images as they are. `validation` of the training samples are held
    out: no image that is trained on may come from among them.

    For texts: `sequence_length` is what longer ones are cut to, in tokens; `tokens` how many the
    network can tell apart; `vocabulary_dir` has a vocabulary to use instead of one trained on them.

    The rest is for object stores: `journal` is told what happened in whatever process it happens,
    so it must survive being pickled; `report` hears how a download goes, and may end it by raising.
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

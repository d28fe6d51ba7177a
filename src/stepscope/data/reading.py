"""How the samples of a data set are wanted: all that a run says about its data, in plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Pipeline = Literal["batch", "sample"]


@dataclass(frozen=True)
class Reading:
    """Where a data set lies, how much of it is taken, and what is made of each sample.

    `shape` is what images are brought to, None for the data set's own. `augment_seed` is for
    training batches; None leaves images as they are.
    """

    data_dir: Path = Path("data")
    source: str = "memory"
    samples: int | None = None
    shape: tuple[int, ...] | None = None
    pipeline: Pipeline = "batch"
    augment_seed: int | None = None

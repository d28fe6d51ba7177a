"""Drop the data files from the page cache before an epoch, if the spec asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from stepscope.hardware.page_cache import make_cold
from stepscope.settings import RunSpec
from stepscope.train.recorder import RunMessages

BeforeEpoch = Callable[[int], None]


def cold_epoch_hook(spec: RunSpec, files: Sequence[Path], messages: RunMessages) -> BeforeEpoch:
    """Return a callback to run before each training epoch.

    It also runs when an epoch is resumed: verifying the files has warmed the page cache.
    """

    def before_epoch(epoch: int) -> None:
        if spec.page_cache == "cold-epochs" or (spec.page_cache == "cold" and epoch == 1):
            messages.event("page_cache", epoch=epoch, **asdict(make_cold(files)))

    return before_epoch

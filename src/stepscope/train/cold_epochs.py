"""Cold files before an epoch, where the spec asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from stepscope.hardware.page_cache import make_cold
from stepscope.settings import RunSpec
from stepscope.train.recorder import RunMessages

BeforeEpoch = Callable[[int], None]


def cooling(spec: RunSpec, files: Sequence[Path], telling: RunMessages) -> BeforeEpoch:
    """Return what is to be done right before a training epoch is begun or gone on with.

    A run that is resumed has read its files again to check them, which makes them warm.
    """

    def before_epoch(epoch: int) -> None:
        if spec.page_cache == "cold-epochs" or (spec.page_cache == "cold" and epoch == 1):
            telling.event("page_cache", epoch=epoch, **asdict(make_cold(files)))

    return before_epoch

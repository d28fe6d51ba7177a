"""A row of `epochs.csv`, from whatever timed the epoch."""

from __future__ import annotations

from stepscope.measure.rows import EpochTiming
from stepscope.records import schema
from stepscope.records.csvlog import number


def epoch_values(
    split: str,
    timing: EpochTiming,
    *,
    loss: float | None,
    accuracy: float | None = None,
    top5: float | None = None,
) -> dict[str, str]:
    """Format an epoch's figures, by column; what is unknown is empty."""
    values = {
        "epoch": str(timing.epoch),
        "split": split,
        "start_s": number(timing.start_s),
        "loader_start_s": number(timing.loader_start_s),
        "loader_stop_s": number(timing.loader_stop_s),
        "loading_s": number(timing.loading_s),
        "training_s": number(timing.training_s),
        "total_s": number(timing.total_s),
        "loss": number(loss),
        "accuracy": number(accuracy),
        "top5": number(top5),
        "samples": number(timing.samples_known),
        "samples_per_s": number(timing.samples_per_s),
    }
    return {column: values[column] for column in schema.EPOCH_COLUMNS}

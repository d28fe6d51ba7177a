"""Charts of learning: accuracy and loss by epoch and by time, for one or several runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stepscope.analyze.run_summary import EVALUATION_SPLITS
from stepscope.records.run_reader import Run
from stepscope.records.types import EpochRow
from stepscope.report.charts.chart import Chart, ChartMark


def learning_charts(runs: Sequence[tuple[str, Run]]) -> list[Chart]:
    """Return accuracy by time, accuracy by epoch and loss by epoch, with a series for each split.

    Several runs have a series each, of their evaluations if there are any.
    """
    splits: Sequence[str] = ("train", *EVALUATION_SPLITS)
    if len(runs) > 1:
        known = {split for _, run in runs for split in run.epochs["split"]}
        splits = [split for split in EVALUATION_SPLITS if split in known] or ["train"]
    rows = [
        (name or split, row)
        for split in splits
        for name, run in runs
        for row in run.epoch_rows(split)
    ]
    by_time = _marks((name, _end_s(row), row["accuracy"], 100) for name, row in rows)
    by_epoch = _marks((name, float(row["epoch"]), row["accuracy"], 100) for name, row in rows)
    losses = _marks((name, float(row["epoch"]), row["loss"], 1) for name, row in rows)
    return [
        Chart("Accuracy by time", "lines", "time since the start, s", "accuracy, %", by_time),
        Chart("Accuracy by epoch", "lines", "epoch", "accuracy, %", by_epoch),
        Chart("Loss by epoch", "lines", "epoch", "loss", losses),
    ]


def _marks(
    figures: Iterable[tuple[str, float | None, float | None, float]],
) -> list[ChartMark]:
    return [
        ChartMark(at, value * times, name)
        for name, at, value, times in figures
        if at is not None and value is not None and math.isfinite(value)
    ]


def _end_s(row: EpochRow) -> float | None:
    """Return the end of an epoch or evaluation, when its accuracy was known."""
    if row["start_s"] is None or row["total_s"] is None:  # of a folder without that column
        return None
    return row["start_s"] + row["total_s"]

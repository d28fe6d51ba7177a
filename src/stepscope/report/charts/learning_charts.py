"""Charts of learning: accuracy and loss by epoch and by time, for one or several runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stepscope.analyze.run_summary import EVALUATION_SPLITS
from stepscope.records.run_reader import Run
from stepscope.report.charts.chart import Chart, ChartMark


def learning_charts(runs: Sequence[tuple[str, Run]]) -> list[Chart]:
    """Return accuracy by time and epoch, and loss by epoch: of each split, or of each run."""
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
    by_time = _marks(
        (name, row["start_s"] + row["total_s"], row["accuracy"], 100)  # known at the end
        for name, row in rows
        if row["start_s"] is not None and row["total_s"] is not None
    )
    by_epoch = _marks((name, float(row["epoch"]), row["accuracy"], 100) for name, row in rows)
    losses = _marks((name, float(row["epoch"]), row["loss"], 1) for name, row in rows)
    return [
        Chart("Accuracy by time", "lines", "time since the start, s", "accuracy, %", by_time),
        Chart("Accuracy by epoch", "lines", "epoch", "accuracy, %", by_epoch),
        Chart("Loss by epoch", "lines", "epoch", "loss", losses),
    ]


def _marks(figures: Iterable[tuple[str, float, float | None, float]]) -> list[ChartMark]:
    return [
        ChartMark(at, value * times, name)
        for name, at, value, times in figures
        if value is not None and math.isfinite(value)
    ]

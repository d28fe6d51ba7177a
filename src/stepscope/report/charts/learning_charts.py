"""Charts of learning: accuracy and loss by epoch and by time, for one or several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stepscope.analyze.run_summary import EVALUATION_SPLITS
from stepscope.records.run_reader import Run
from stepscope.report.charts.chart import Chart, ChartMark

Named = Sequence[tuple[str, Run]]
Row = dict[str, Any]

_SPLITS = ("train", *EVALUATION_SPLITS)


def accuracy_by_epoch(runs: Named) -> Chart:
    """Return the chart of accuracy against the epoch."""
    marks = list(_marks(runs, "accuracy", lambda row: float(row["epoch"]), 100))
    return Chart("Accuracy by epoch", "lines", "epoch", "accuracy, %", marks)


def accuracy_by_time(runs: Named) -> Chart:
    """Return the chart of accuracy against the time since the start of the run."""
    marks = list(_marks(runs, "accuracy", _end_s, 100))
    return Chart("Accuracy by time", "lines", "time since the start, s", "accuracy, %", marks)


def loss_by_epoch(runs: Named) -> Chart:
    """Return the chart of loss against the epoch."""
    marks = list(_marks(runs, "loss", lambda row: float(row["epoch"]), 1))
    return Chart("Loss by epoch", "lines", "epoch", "loss", marks)


def _marks(
    runs: Named, figure: str, place: Callable[[Row], float | None], times: float
) -> Iterator[ChartMark]:
    """Return a figure of every epoch and split; several runs show evaluations only, if any."""
    known = {split for _, run in runs for split in run.epochs["split"]}
    evaluated = tuple(split for split in EVALUATION_SPLITS if split in known)
    splits = _SPLITS if len(runs) == 1 else evaluated or ("train",)
    for split in splits:
        for name, run in runs:
            for row in run.epochs.rows():
                at, value = place(row), row[figure]
                if row["split"] == split and at is not None and _is_known(value):
                    yield ChartMark(at, value * times, name or split)


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _end_s(row: Row) -> float | None:
    """Return the end of an epoch or evaluation, when its accuracy was known."""
    if row["start_s"] is None or row["total_s"] is None:
        return None
    return float(row["start_s"] + row["total_s"])

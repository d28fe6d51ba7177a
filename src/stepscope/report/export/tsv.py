"""Accuracy against time, in the four columns of DAWNBench, a row for each test.

`hours` is the time from the start of the run to the start of the test.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.errors import AnswerIsNo
from stepscope.records.run_reader import Run
from stepscope.report.export import nothing_recorded

FILE = "accuracy.tsv"
HEADER = ("epoch", "hours", "top1Accuracy", "top5Accuracy")

_S_PER_HOUR = 3600


def encode(run: Run) -> Iterator[tuple[str, int]]:
    """Yield the lines of the table, each with its number of rows."""
    tests = run.epoch_rows("test")
    if not tests:
        raise nothing_recorded(run, "test")
    if all(row["accuracy"] is None for row in tests):
        absent = run.summary.get("absent") or {}
        why = absent.get("test_accuracy", "no reason is recorded")
        raise AnswerIsNo(f"nothing to export: no test accuracy is recorded in {run.path}: {why}.")
    yield "\t".join(HEADER) + "\n", 0
    for row in tests:
        figures = ((row["start_s"], 1 / _S_PER_HOUR), (row["accuracy"], 100), (row["top5"], 100))
        shown = ["" if value is None else f"{value * times:.6g}" for value, times in figures]
        yield "\t".join([str(row["epoch"]), *shown]) + "\n", 1

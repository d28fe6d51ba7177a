"""Accuracy against time, in the four columns of DAWNBench: epoch, hours, top-1, top-5.

There is one row for each test. `hours` is the time from the start of the run to the start of the
test: training time without the time of evaluation. Accuracies are in percent.
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
    """Yield the lines of the table, each with its number of rows.

    Raises:
        AnswerIsNo: no test was recorded, or none with a known accuracy.
    """
    tests = [row for row in run.epochs.rows() if row["split"] == "test"]
    if not tests:
        raise nothing_recorded(run, "test")
    if all(row["accuracy"] is None for row in tests):
        absent = run.summary.get("absent") or {}
        why = absent.get("test_accuracy", "the run folder does not say why")
        raise AnswerIsNo(
            f"nothing to export: the accuracy of no test is known in {run.path}: {why}."
        )
    yield _line(*HEADER), 0
    for row in tests:
        hours = _times(row["start_s"], 1 / _S_PER_HOUR)
        yield _line(row["epoch"], hours, _times(row["accuracy"], 100), _times(row["top5"], 100)), 1


def _times(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:.6g}"


def _line(*fields: object) -> str:
    return "\t".join(map(str, fields)) + "\n"

"""Accuracy against time, as a table that the usual libraries read."""

from __future__ import annotations

import io

import pandas
import pytest
from written_tables import epoch_row, write_tables

from stepscope.errors import AnswerIsNo
from stepscope.records.run_reader import Run
from stepscope.report.export import tsv


def text_of(run: Run) -> str:
    return "".join(text for text, _ in tsv.encode(run))


def test_a_test_is_a_row_of_epoch_hours_and_percent(tmp_path):
    trained = epoch_row(1, 0.0, split="train")
    tests = [epoch_row(1, 1800), epoch_row(2, 5400, accuracy=0.9375)]
    run = write_tables(tmp_path, epochs=[trained, *tests])
    read = pandas.read_csv(io.StringIO(text_of(run)), sep="\t")
    assert read.to_dict("list") == {
        "epoch": [1, 2],
        "hours": [0.5, 1.5],
        "top1Accuracy": [50.0, 93.75],
        "top5Accuracy": [87.5, 87.5],
    }
    assert sum(count for _, count in tsv.encode(run)) == 2


def test_what_is_not_known_is_an_empty_field(tmp_path):
    rows = [epoch_row(1, 36, accuracy=0.25, top5=None), epoch_row(2, None, accuracy=None)]
    assert text_of(write_tables(tmp_path, epochs=rows)).splitlines()[1:] == [
        "1\t0.01\t25\t",
        "2\t\t\t87.5",
    ]


def test_a_script_s_tests_without_accuracy_are_no_table_and_the_reason_is_told(tmp_path):
    why = {"absent": {"test_accuracy": "a foreign script keeps its accuracy to itself"}}
    unknown = epoch_row(1, 5, accuracy=None, top5=None)
    with pytest.raises(AnswerIsNo, match="keeps its accuracy to itself"):
        text_of(write_tables(tmp_path, epochs=[unknown], kind="trace", summary=why))

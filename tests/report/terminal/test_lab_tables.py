"""What labs and the forecast say on a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from stepscope.report.progress_bar import LiveDisplay
from stepscope.report.terminal.lab_tables import print_labs


def shown(forecast: dict[str, object]) -> str:
    file = StringIO()
    with LiveDisplay(Console(file=file, force_terminal=False)) as display:
        display.message({"type": "forecast", "forecast": forecast})
    return file.getvalue()


@pytest.mark.parametrize(
    ("workers", "fit", "words"),
    [
        (4, 2, "memory forecast: 2 of 4 workers will fit from epoch 2 on\n"),
        (1, 0, "memory forecast: 0 of 1 worker will fit from epoch 2 on\n"),
    ],
)
def test_workers_that_will_not_fit_are_told_of_before_the_run(workers, fit, words):
    assert shown({"workers": workers, "workers_that_fit": fit}) == words


@pytest.mark.parametrize(
    "forecast",
    [
        {"workers": 2, "workers_that_fit": 2},
        {"workers": 0, "workers_that_fit": 0},
        {"workers": 2, "workers_that_fit": None},
        {"reason": "no forecast"},
    ],
)
def test_where_all_fit_or_nothing_does_or_is_known_there_is_no_such_line(forecast):
    assert shown(forecast) == ""


def test_labs_are_listed_one_a_line():
    file = StringIO()
    print_labs(Console(file=file, width=20), {"a": "one thing", "longer": "another [red] thing"})
    assert file.getvalue() == "a       one thing\nlonger  another [red] thing\n"

"""A run as it goes, on a terminal and elsewhere."""

from __future__ import annotations

import re
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from stepscope.report import progress_bar
from stepscope.report.progress_bar import LiveDisplay

PROGRESS: dict[str, Any] = {
    "type": "progress",
    "split": "train",
    "epoch": 2,
    "epochs": 3,
    "step": 120,
    "steps": 782,
    "done": 0.4,
    "steps_left": 1400,
    "step_s": 0.05,  # 1400 of them: 70 s
    "loss": 1.2345,
    "accuracy": 0.456,
    "samples_per_s": 1234.4,
    "data_share": 0.123,
}
FIGURES = [
    "epoch 2/3",
    "step 120/782",
    "loss 1.234",
    "accuracy 45.6 %",
    "1,234 samples/s",
    "waiting for data 12.3 %",
    "1:10 left",
]
UNKNOWN = dict.fromkeys(("step_s", "loss", "accuracy", "samples_per_s", "data_share"))
EPOCH = {"type": "epoch", "epoch": "1", "split": "train", "total_s": "10.8", "loss": "1.875"}
TRAINED = {**EPOCH, "accuracy": "0.3125", "top5": "0.81"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now_s=50.0)
    monkeypatch.setattr(progress_bar, "monotonic", lambda: clock.now_s)
    return clock


def shown(*messages: dict[str, Any], terminal: bool, width: int = 80) -> str:
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None)
    with LiveDisplay(console) as display:
        for message in messages:
            display.message(message)
    return file.getvalue()


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_terminal_of_any_width_shows_every_figure(width):
    text = without_codes(shown(PROGRESS, terminal=True, width=width))
    assert "…" not in text
    words = " ".join(text.split())
    for figure in FIGURES:
        for word in figure.split():
            assert word in words
    assert width < 80 or all(figure in text for figure in FIGURES)


def test_a_terminal_is_left_clean_for_the_closing_words():
    text = shown(PROGRESS, terminal=True)
    assert text.endswith("\x1b[2K")  # the moving line is wiped
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # and the cursor is back


def test_what_is_not_known_yet_is_left_out():
    text = without_codes(shown({**PROGRESS, **UNKNOWN}, terminal=True))
    assert "step 120/782" in text
    assert not [word for word in ("loss", "accuracy", "samples/s", "left", "None") if word in text]


def test_elsewhere_there_are_plain_lines_now_and_then(clock):
    file = StringIO()
    with LiveDisplay(Console(file=file, force_terminal=False, width=80)) as display:
        display.message({"type": "ready", "preparation_s": 2.5})
        display.message(PROGRESS)
        clock.now_s += progress_bar.PLAIN_EVERY_S
        display.message(PROGRESS)
        display.message(PROGRESS)
        display.message(TRAINED)
        display.output("a line of the training")
        display.stopping()
    assert file.getvalue().split("\n") == [
        "data and network ready in 2.5 s",
        "  ".join(FIGURES),
        "epoch 1: 10.8 s, loss 1.875, accuracy 31.2 %",
        "a line of the training",
        "stopping after this step; press Ctrl-C again to stop at once",
        "",
    ]


@pytest.mark.parametrize(
    ("left", "words"),
    [(2, "2 workers instead of 3"), (1, "1 worker instead of 2"), (0, "no workers instead of 1")],
)
def test_lost_workers_are_a_line_of_their_own(left, words):
    message = {"type": "workers", "from": left + 1, "to": left, "reason": "worker (pid 7) is gone"}
    text = shown(message, terminal=False)
    assert text == f"data loader: worker (pid 7) is gone; continuing with {words}\n"


@pytest.mark.parametrize(
    ("forecast", "words"),
    [
        ({"workers": 4, "workers_that_fit": 2}, "2 of 4 workers"),
        ({"workers": 1, "workers_that_fit": 0}, "0 of 1 worker"),
        ({"workers": 2, "workers_that_fit": 2}, ""),
        ({"workers": 0, "workers_that_fit": 0}, ""),
        ({"workers": 2, "workers_that_fit": None}, ""),
        ({"reason": "no forecast"}, ""),
    ],
)
def test_workers_that_will_not_fit_are_told_of_before_the_run(forecast, words):
    line = f"memory forecast: {words} will fit from epoch 2 on\n" if words else ""
    assert shown({"type": "forecast", "forecast": forecast}, terminal=False) == line


def test_a_finished_epoch_stays_on_the_screen():
    text = without_codes(shown(PROGRESS, TRAINED, terminal=True))
    assert "epoch 1: 10.8 s, loss 1.875, accuracy 31.2 %\n" in text


@pytest.mark.parametrize(
    ("epoch", "when"), [("0", "test before training"), ("2", "test after epoch 2")]
)
def test_a_test_says_whether_it_was_before_training_or_after_which_epoch(epoch, when):
    message = {**TRAINED, "split": "test", "epoch": epoch}
    assert shown(message, terminal=False) == f"{when}: accuracy 31.2 %, top-5 81.0 %\n"


def test_an_accuracy_that_is_unknown_is_a_question_mark_and_zero_is_zero():
    unknown = {**TRAINED, "split": "test", "accuracy": "", "top5": ""}
    assert "accuracy ?, top-5 ?" in shown(unknown, terminal=False)
    assert "accuracy 0.0 %" in shown({**TRAINED, "accuracy": "0"}, terminal=False)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_the_training_prints_is_shown_as_it_is_markup_and_all(terminal):
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=40, color_system=None)
    line = "[red]x[/red] [/] :duck: " + "long " * 20
    with LiveDisplay(console) as display:
        display.output(line)
    assert line.rstrip() in without_codes(file.getvalue())


def test_a_message_of_an_unknown_kind_is_passed_over():
    assert shown({"type": "from a later version"}, terminal=False) == ""

"""The closing words of a run, on a console of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.report.terminal.run_tables import print_run

RunMaker = Callable[..., Run]

GOLDEN = Path(__file__).with_name("closing_words.txt")
HEADER = "epoch,split,loading_s,training_s,total_s,loss,accuracy,top5,samples,samples_per_s\n"


def printed(run: Run, width: int = 80) -> str:
    file = StringIO()
    print_run(Console(width=width, file=file), run)
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n"))


def test_the_closing_words_are_those_that_were_agreed_on(make_run):
    text = printed(make_run())
    wanted = GOLDEN.read_text(encoding="utf-8")
    assert text == wanted, f"where the change is wanted, put this into {GOLDEN.name}:\n{text}"
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_is_cut_off_at_80_columns_even_of_the_widest_figures(make_run):
    times = dict.fromkeys(("mean_s", "median_s", "p95_s", "p99_s"), 35_999.0)
    wide = {"total_s": 359_999.0, "share": 1.0, **times}
    phases = dict.fromkeys(schema.PHASES, wide)
    run = make_run(
        epochs=HEADER
        + "1000,train,5999,35999,359999,2.303,1,1,5000,1234567\n"
        + "1000,test,1,1,1,1,1,1,5000,1234567\n",
        summary={"steps": 10**9, "wall_s": 359_999.0, "phases": phases},
    )
    text = printed(run)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for figure in ("99:59:59", "9:59:59", "1,234,567", "2.303", "100.0 %", "1,000,000,000 steps"):
        assert figure in text


def test_a_console_that_is_too_narrow_gets_every_figure_all_the_same(make_run):
    assert printed(make_run(), width=30) == GOLDEN.read_text(encoding="utf-8")


def test_a_long_path_is_on_one_line_so_that_it_can_be_copied(make_run):
    run = make_run()
    long_path = Path("runs") / ("very-" * 20 + "long")
    run.path.rename(run.path.parent.parent / long_path)
    assert f"run folder: {long_path}\n" in printed(load_run(long_path))


def test_a_name_that_looks_like_markup_is_shown_as_it_is(make_run):
    model = "[red]x[/red]"
    text = printed(make_run(spec={"model": model, "data": "[/]", "device": "[bold]"}))
    assert f"{model} on [/], [bold]: completed" in text


def test_a_name_that_would_steer_the_terminal_is_shown_and_does_not(make_run):
    hostile = "run\nme\x1b[31m\x07.py"
    run = make_run()
    run.info["kind"], run.info["spec"] = "trace", {"script": hostile}
    text = printed(run)
    assert r"run\nme\x1b[31m\x07.py, " in text
    assert not {"\x1b", "\x07"} & set(text)


def test_a_failed_run_without_steps_prints_its_status_and_folder(make_run):
    absent = {"phases": "no step was finished"}
    summary = {"steps": 0, "wall_s": 1.5, "phases": None, "accounted_share": None, "absent": absent}
    text = printed(make_run(HEADER, status="failed", reason="x", summary=summary, instrument={}))
    assert text == (
        "\nlenet on shapes, cpu: failed, 0 steps in 1.5 s\n"
        "run folder: runs/20260102-030405-lenet-shapes\n"
    )


def test_a_run_that_never_closed_prints(make_run):
    text = printed(make_run(HEADER, status="running", summary={}, spec={}, instrument=None))
    assert "running" in text
    assert "run folder: " in text


def test_a_figure_that_is_unknown_is_a_question_mark_and_not_a_zero(make_run):
    text = printed(make_run(HEADER + "1,train,1,2,3,,,,64,\n"))
    row = next(line for line in text.splitlines() if line.strip().startswith("1 "))
    assert row.split() == ["1", "1.00", "s", "2.00", "s", "3.00", "s", "?", "?", "?", "?", "?"]


@pytest.mark.parametrize(("share", "said"), [(0.98, ["98.0 %"]), (1.02, ["102.0 %"]), (0.995, [])])
def test_the_accounted_share_is_shown_where_it_is_off(make_run, share, said):
    summary = {"steps": 1, "phases": None, "accounted_share": share}
    text = printed(make_run(summary=summary))
    assert re.findall("steps account for (.*) of the time of their epochs", text) == said


def test_a_folder_elsewhere_is_named_in_full(make_run, monkeypatch, tmp_path):
    run = make_run()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert f"run folder: {run.path}\n" in printed(run)

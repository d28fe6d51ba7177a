"""The end of a run on the terminal: the answer first, 80 columns, about 20 lines."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from stepscope.analyze.findings import Finding
from stepscope.records.run_reader import Run
from stepscope.report.terminal import verdict_text
from stepscope.report.terminal.verdict_text import print_verdict

VERDICT = {
    "text": "Half of every step waits for data, loaded in the training process: the transform "
    "RandomResizedCrop takes 71 % of loading. Set num_workers=4: about 1.9 times faster "
    "(1.7 to 2.1), 4:12 becomes 2:15.",
    "cause": "slow_transform",
    "expected_speedup": 1.9,
    "interval": [1.7, 2.1],
    "command": "stepscope workers -- train.py --epochs 5",
}
BEST = Finding("slow_transform", "Waits.", (), None, 0.5, 10.0, "set num_workers=4")
NOISY = Finding(
    "too_noisy", "Steps are noisy: repeat the run before you compare it.", (), None, 0.9
)
EVALUATES = Finding("frequent_evaluation", "Evaluates.", (), None, 0.1, 2.0, "evaluate less")


@pytest.fixture
def findings(monkeypatch) -> list[Finding]:
    found = [BEST, EVALUATES, NOISY]
    monkeypatch.setattr(verdict_text, "findings_of", lambda run: found)
    return found


@pytest.fixture
def ended(make_run, summary):
    """Make a run that ended with the verdict."""

    def make(status: str = "completed", **changes: Any) -> Run:
        return make_run(status=status, summary={**summary, "verdict": VERDICT, **changes})

    return make


def printed(run: Run, width: int = 80, **options: Any) -> str:
    file = StringIO()
    print_verdict(Console(width=width, file=file, **options), run)
    return file.getvalue()


def test_the_answer_comes_first_in_80_columns_and_20_lines(ended, findings):
    lines = printed(ended(samples_per_s=993.0)).splitlines()
    assert lines[1].startswith("  Half of every step waits for data")
    assert "  Prove it:  stepscope workers -- train.py --epochs 5" in lines
    assert "  step 15.3 ms   993 samples/s   peak memory 450.0 MiB" in lines
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20


def test_the_cause_of_the_verdict_is_not_repeated_and_what_saves_nothing_comes_last(
    ended, findings
):
    text = printed(ended())
    assert "Waits." not in text
    assert text.index("  Then: Evaluates. Evaluate less") < text.index("        Steps are noisy")


def test_many_long_findings_stay_within_the_lines(ended, findings):
    findings[:] = [
        Finding(str(n), "A long finding, word by word. " * 6, (), None, 1) for n in "123"
    ]
    lines = printed(ended()).splitlines()
    assert len(lines) <= 20


def test_colour_is_only_for_terminals_and_never_with_no_color(ended, findings, monkeypatch):
    run = ended()
    assert "\x1b" not in printed(run)
    coloured = printed(run, force_terminal=True, color_system="truecolor")
    assert re.search(r"\x1b\[1;32m[^\x1b]*1.9 times faster", coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed(run, force_terminal=True, color_system="truecolor")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|38)", plain)


def stack(code: str | None, line: str, activity: str | None = None) -> dict[str, Any]:
    times = {"total_s": 1.0, "samples": 9}
    return {"where": "other", "activity": activity, "line": line, "code": code, **times}


@pytest.mark.parametrize(
    ("code", "activity", "note"),
    [
        ("loss.item()", "synchronising read", "loss.item(), train.py:41"),
        ("very_long_name.of_a_call(with_an_argument)", "logging", "logging, train.py:41"),
        (None, None, "train.py:41"),
    ],
)
def test_the_note_on_other_is_the_longest_that_fits(ended, findings, code, activity, note):
    run = ended(stacks=[stack(code, "train.py:41", activity)])
    (line,) = [each for each in printed(run).splitlines() if each.startswith("  other")]
    assert line.endswith(f"  {note}")


def test_a_note_is_never_cut_within_a_word(ended, findings):
    long = {"kind": "transform", "line": None, "share": 0.7, "samples": 9}
    loader = {"samples": 9, "slow_share": 0.0, "slow_samples": []}
    loader |= {"sample_s": None, "median_sample_s": None}
    loader |= {"parts": [{**long, "name": "AugmentEverything with_a_very_long_name of words"}]}
    text = printed(ended(loader=loader))
    (line,) = [each for each in text.splitlines() if each.startswith("  data")]
    assert line.endswith("  AugmentEverything …")


def test_a_path_that_does_not_fit_is_left_out(ended, findings):
    deep = stack(None, f"{'deeply/' * 9}train.py:41")
    text = printed(ended(stacks=[deep]))
    assert "deeply" not in text


@pytest.mark.parametrize(
    ("status", "steps", "said"),
    [
        ("failed", 50, "  Failed after 21.4 s: the figures are those of 50 steps."),
        ("interrupted", 1, "  Interrupted after 21.4 s: the figures are those of 1 step."),
        ("out_of_memory", 0, "  Out of memory after 21.4 s, before the first training step."),
        ("completed", 0, "  No training step was recorded in 21.4 s."),
    ],
)
def test_a_run_that_did_not_complete_says_how_far_it_came(
    ended, summary, findings, status, steps, said
):
    verdict = {**VERDICT, "expected_speedup": None, "text": "The run ended.", "cause": status}
    phases = summary["phases"] if steps else None
    changes = {"verdict": verdict, "steps": steps, "phases": phases}
    findings.clear()
    text = printed(ended(status, **changes))
    assert text.splitlines()[1] == said
    assert "The run ended." not in text


def test_a_narrow_terminal_wraps_the_sentences(ended, findings):
    text = printed(ended(), width=50)
    assert max(len(line) for line in text.splitlines() if "stepscope" not in line) <= 56

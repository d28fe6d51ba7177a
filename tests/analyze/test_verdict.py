"""The verdict names the change that saves most of the wall time, in few words."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest
from complete_run import write_whole_run
from written_tables import write_tables

from stepscope.analyze.findings import Finding
from stepscope.analyze.verdict import verdict_on
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run


def run_of(path: Path, **changes: Any) -> Run:
    """Return a run of 100 s whose steps spend most of their time in the backward pass."""
    phases = {name: {"share": 0.1, "mean_s": 0.01} for name in schema.PHASES}
    phases["backward"] = {"share": 0.5, "mean_s": 0.05}
    summary = {"wall_s": 100.0, "phases": phases, **changes.pop("summary", {})}
    return write_tables(path, summary=summary, **changes)


def finding(name: str, saves_s: float | None = None, weight: float = 0.1) -> Finding:
    text, change = f"{name} is found.", f"undo {name}"
    return Finding(name, text, ("seen",), f"prove {name}", weight, saves_s=saves_s, change=change)


def test_the_cause_that_costs_most_of_the_wall_time_is_named_with_its_gain(tmp_path: Path) -> None:
    found = [finding("noise", weight=1.0), finding("small", 10.0), finding("large", 50.0)]
    verdict = verdict_on(run_of(tmp_path), found)
    assert (verdict["cause"], verdict["command"]) == ("large", "prove large")
    assert verdict["expected_speedup"] == pytest.approx(2.0)
    assert verdict["text"] == (
        "large is found. Undo large: about 2.0 times faster (1.7 to 2.4), 1:40 becomes 50 s."
    )
    beyond_measure = verdict_on(run_of(tmp_path), [finding("large", 99.0)])["text"]
    assert "about 10 times faster or more, 1:40 becomes" in beyond_measure


@pytest.mark.parametrize("found", [[], [finding("small", 1.0)], [finding("noise", weight=1.0)]])
def test_without_a_worthwhile_gain_the_verdict_says_where_the_time_goes(
    tmp_path: Path, found: list[Finding]
) -> None:
    verdict = verdict_on(run_of(tmp_path, summary={"share_of_peak": 0.71}), found)
    assert verdict["cause"] == "none"
    assert verdict["expected_speedup"] is None
    assert verdict["text"] == (
        "Nothing obvious to gain: 70.0 % of a step is computation, at 71.0 % of this machine's "
        "peak."
    )


@pytest.mark.parametrize(("saves_s", "cause"), [(10.0, "growing_memory"), (60.0, "large")])
def test_memory_that_will_run_out_comes_before_a_small_gain_only(
    tmp_path: Path, saves_s: float, cause: str
) -> None:
    found = [finding("large", saves_s), finding("growing_memory")]
    assert verdict_on(run_of(tmp_path), found)["cause"] == cause


@pytest.mark.parametrize("doubt", ["busy_machine", "throttling"])
def test_a_machine_that_slows_everything_down_comes_before_any_gain(
    tmp_path: Path, doubt: str
) -> None:
    verdict = verdict_on(run_of(tmp_path), [finding("large", 60.0), finding(doubt)])
    assert (verdict["cause"], verdict["text"]) == (doubt, f"{doubt} is found.")


def test_a_run_that_did_not_complete_has_its_ending_as_the_verdict(tmp_path: Path) -> None:
    run = run_of(tmp_path, status=schema.OUT_OF_MEMORY, reason="the kernel ended it.")
    verdict = verdict_on(run, [finding("large", 60.0)])
    assert verdict["text"] == "The run ended as out of memory: the kernel ended it."


def test_a_run_that_was_killed_has_its_first_finding_as_the_verdict(tmp_path: Path) -> None:
    killed = run_of(tmp_path, status=schema.RUNNING, summary={"wall_s": None, "phases": None})
    verdict = verdict_on(killed, [finding("large", 50.0), finding("small")])
    assert verdict["text"] == "large is found. Undo large."
    assert (verdict["cause"], verdict["expected_speedup"]) == ("large", None)


def test_a_run_without_steps_says_why_there_is_no_verdict(tmp_path: Path) -> None:
    summary = {"phases": None, "absent": {"phases": "no step was recorded"}}
    verdict = verdict_on(run_of(tmp_path, summary=summary), [])
    assert verdict["text"] == "No verdict: no step was recorded."


def test_the_longest_verdicts_fit_four_lines(tmp_path: Path) -> None:
    text = (
        "89.6 % of every step waits for data, loaded in the training process: the transform "
        "RandomHorizontalFlip takes 99.0 % of loading."
    )
    worst = Finding("large", text, (), None, 1.0, 59.0, "make RandomHorizontalFlip cheaper")
    assert len(wrap(verdict_on(run_of(tmp_path), [worst])["text"], 76)) <= 4


def test_the_summary_of_a_whole_run_has_a_verdict(tmp_path: Path) -> None:
    run = load_run(write_whole_run(tmp_path / "run"))
    assert run.summary["verdict"] == verdict_on(run)

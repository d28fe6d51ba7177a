"""`stepscope compare` from outside: real runs, what it prints, and every way it says no."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from stepscope_command import Stepscope
from written_runs import write_run, write_runs, write_sweep

import stepscope as library
from stepscope.cli.compare import compare
from stepscope.errors import RequestError

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0]
HALF = [rate / 2 for rate in STEADY]
NOISY = [100.0, 106.0, 97.0, 102.0]


@pytest.fixture
def folder(stepscope: Stepscope) -> Path:
    write_runs(stepscope.folder / "steady", STEADY)
    write_runs(stepscope.folder / "half", HALF, spec={"workers": 2})
    rates = {0: NOISY, 2: NOISY[::-1]}
    write_sweep(stepscope.folder / "sweep", {"workers": [0, 2]}, rates)
    write_sweep(stepscope.folder / "search", {"workers": [0, 2]}, rates, kind="workers")
    return stepscope.folder


def test_a_slower_set_is_shown_as_slower(stepscope, folder):
    answer = stepscope.succeed("compare", "steady", "half")
    rows = [line.split() for line in answer.out.splitlines() if line.split()[:1] == ["half"]]
    totals, _, throughput = rows[:3]
    assert totals[1] == "6"
    assert throughput[1:3] == ["50", "0.500"]
    assert throughput[-1] == "slower"
    assert "half is slower than steady: 0.5 times the throughput" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "half: changed: workers 0 -> 2" in answer.out
    assert "peak memory" in answer.out
    assert "test accuracy" in answer.out


def test_json_has_every_field(stepscope, folder):
    answer = stepscope("compare", "steady", "half", "--json")
    found = answer.json
    assert answer.err == ""
    assert set(found["baseline"]["samples_per_s"]) == {"median", "low", "high"}
    (other,) = found["others"]
    assert {"ratio", "low", "high", "rounds"} <= set(other["ratio"])
    assert (other["name"], other["runs"], other["verdict"]) == ("half", 6, "slower")
    assert other["changed"] == {"workers": {"baseline": 0, "other": 2}}
    assert other["environment_differs"] == {}
    assert any("not run in rounds" in warning for warning in other["warnings"])
    fewest, most = other["rounds_needed_for_5_percent"]
    assert 3 <= fewest <= most
    assert found["verdict"]["text"].startswith("Keep steady: half is slower, 0.5 times as fast (")
    assert found["fail_if_slower"] is None


def test_no_difference_says_what_could_have_been_seen_and_how_to_see_more(stepscope, folder):
    answer = stepscope.succeed("compare", "sweep")
    assert "No difference detected between workers=2 and workers=0" in answer.out
    assert "To detect a slowdown of 5 %" in " ".join(answer.out.split())
    assert "; 4 were run." in " ".join(answer.out.split())
    *_, last = answer.out.strip().splitlines()
    assert last.startswith("To find out: "), "the last line has the command that decides"
    offered = last.removeprefix("To find out: ").split()
    assert offered[:2] == ["stepscope", "sweep"]
    assert "--over workers=0,2 --repeats" in " ".join(offered)


def test_where_5_percent_are_excluded_it_says_so_and_offers_nothing(stepscope, folder):
    calm = [100.0, 101.0, 100.0, 101.0]
    write_sweep(folder / "calm", {"workers": [0, 2]}, {0: calm, 2: calm[::-1]})
    answer = stepscope.succeed("compare", "calm")
    assert "slowdown of 5 % is excluded" in " ".join(answer.out.split())
    assert "To find out" not in answer.out


def test_two_runs_are_too_few_to_tell(stepscope, folder):
    answer = stepscope("compare", "steady/run-0", "half/run-0")
    assert answer.code == 0
    assert "Cannot tell whether" in answer.out
    assert "too few rounds for an interval" in " ".join(answer.out.split())
    assert "To find out: stepscope sweep --over workers=0,2 --repeats 6" in answer.out


@pytest.mark.parametrize("limit", ["5%", "5 %", "0.05", "5.0%", ".05", "0%", "45%"])
def test_slower_than_allowed_is_answered_with_1(folder, monkeypatch, capsys, limit):
    monkeypatch.chdir(folder)
    assert compare("steady", "half", fail_if_slower=limit) == 1
    assert "half is slower than the baseline by more than" in capsys.readouterr().err


def test_not_slower_than_allowed_exits_with_0(stepscope, folder):
    answer = stepscope("compare", "half", "steady", "--fail-if-slower", "5%", "--json")
    assert answer.code == 0
    assert "steady is not slower" in answer.err
    assert answer.json["fail_if_slower"] == {
        "most_slowdown": 0.05,
        "slower": [],
        "not_slower": ["steady"],
        "cannot_tell": [],
        "messages": ["steady is not slower than the baseline by more than 5.0 %"],
    }


def test_what_could_not_be_shown_exits_with_6_and_says_so(stepscope, folder):
    answer = stepscope("compare", "sweep", "--fail-if-slower=5%")
    assert answer.code == 6
    assert "undecided whether workers=2 is slower" in answer.err
    assert re.search(r"\d+ to \d+ rounds decide", answer.err)


@pytest.mark.parametrize(
    "limit", ["5", "-5%", "100%", "much", "", "nan", "1e-2", "5%%", "\N{ARABIC-INDIC DIGIT FIVE}%"]
)
def test_a_limit_that_is_no_share_is_refused(limit):
    with pytest.raises(RequestError, match=r"fail_if_slower: wanted .* like 5% or 0\.05"):
        compare("steady", "half", fail_if_slower=limit)


def test_one_side_alone_is_nothing_to_compare(stepscope, folder):
    assert stepscope("compare", "steady").is_refused(2, "two or more", "found steady")


def test_nothing_left_to_compare_is_no_crash(stepscope, folder):
    write_run(folder / "dead", 1.0, status="failed", reason="it fell over")
    answer = stepscope("compare", "dead", "dead", "--fail-if-slower", "5%")
    assert answer.code == 1
    assert "dead fails: none of its 1 run completed" in answer.err
    assert "dead is excluded: failed (it fell over)" in answer.out
    assert "cannot tell" in answer.out


def test_a_name_is_shown_as_it_is(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    write_run(folder / "[bold]b")
    assert compare("steady", "[bold]b") == 0
    assert "\n [bold]b  " in capsys.readouterr().out


def record_loop(out: Path, step_s: float) -> str:
    """Record a real loop whose steps take about this long."""
    batches = [torch.zeros(8, 1)] * 20
    with library.Scope("planted", out=out, quiet=True) as scope:
        for _ in range(2):
            for _ in scope.epoch(batches):
                time.sleep(step_s)
                scope.lap("forward")
    return str(scope.path)


@pytest.mark.alone
def test_a_planted_50_percent_is_found_in_real_runs(stepscope):
    sets: dict[float, list[str]] = {0.01: [], 0.015: []}
    for _ in range(6):  # in turn
        for step_s, paths in sets.items():
            paths.append(record_loop(stepscope.folder / "runs", step_s))
    answer = stepscope("compare", *(",".join(each) for each in sets.values()), "--json")
    assert answer.json["others"][0]["verdict"] == "slower", answer.out

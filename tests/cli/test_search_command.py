"""`stepscope accel search`, as a person types it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from stepscope_command import Stepscope

SHORT = shlex.split("--trials 1 --epochs 1 --samples 128 --batch-size 32 --max-steps 2 --threads 1")


def test_a_search_is_stopped_goes_on_and_ends_with_a_design_that_can_be_scored(
    stepscope: Stepscope,
) -> None:
    asked = ("accel", "search", "--budget", "energy_mj=0.2,cycles=1e5", *SHORT)
    stopped = stepscope.interrupted_after("trial 1", *asked)
    assert stopped.code == 130, stopped.err
    assert "stepscope accel search --resume" in stopped.err
    assert (stepscope.folder / "runs/latest/report.html").is_file()

    found = stepscope("accel", "search", "--resume", "runs/latest", "--json").json
    assert found["kind"] == "search"
    assert len(found["trials"]) == 2
    assert all(0 < each["energy_mj"] <= 0.2 for each in found["designs"])
    [final] = [each["final_run"] for each in found["designs"] if each["final_run"]]
    run = json.loads((stepscope.folder / "runs/latest" / final / "run.json").read_text())
    assert run["choice"]["judged_on"] == "validation"
    assert run["summary"]["test_accuracy"] is not None
    scored = stepscope("accel", "score", f"runs/latest/{final}", "--json").json
    assert scored["unknown"] == scored["rules_broken"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "budget: wanted limits"),
        ("--budget watts=1", "there is no figure 'watts'"),
        ("--budget cycles=0", "a number above 0"),
        ("--budget cycles=1e5 --trials 0", "1 or more"),
        ("--budget cycles=1e5 --trials many", "a whole number"),
        ("--budget cycles=1e5 --finals 99", "wanted 1 to 8"),
        ("--budget cycles=1e5 --optimizer adam", "ways of sgd"),
        ("--budget cycles=1e5 --validation 0", "judges on held-out samples"),
        ("--budget cycles=1e5 --no-evaluate", "judges by evaluations"),
        ("--budget cycles=1e5 --source synthetic", "judges by evaluations"),
        ("--budget cycles=1e5 --spatial 8by16", "free, or MxC"),
        ("--budget cycles=1e5 --model nonet", "unknown model"),
        ("--resume nowhere", "is not a sweep folder"),
        ("--resume nowhere --budget cycles=1", "takes no other flag"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_made(
    stepscope: Stepscope, words: str, said: str
) -> None:
    answer = stepscope("accel", "search", *words.split())
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert not (stepscope.folder / "runs").exists()


def test_without_optuna_the_extra_is_named(stepscope: Stepscope) -> None:
    code = (
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'optuna' else find(name, *more)\n"
        "from stepscope.cli.main import main\n"
        "main(['accel', 'search', '--budget', 'cycles=1e5'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=stepscope.folder,
        check=False,
    )
    assert done.returncode == 5
    assert "stepscope[search]" in done.stderr

"""`stepscope accel search`, as a person types it."""

import json
import shlex
import subprocess
import sys

SHORT = shlex.split("--trials 1 --epochs 1 --samples 128 --batch-size 32 --max-steps 2 --threads 1")


def test_a_search_is_stopped_goes_on_and_ends_with_a_design_that_can_be_scored(stepscope):
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


def test_without_optuna_the_extra_is_named(stepscope):
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

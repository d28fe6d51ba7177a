"""Completion: the scripts of three shells, and what bash offers after TAB."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stepscope_command import Stepscope

COMPLETE = """
source ./completion.bash
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="$*"
COMP_POINT=${#COMP_LINE}
$(complete -p stepscope | sed -E 's/.*-F ([^ ]+).*/\\1/') stepscope "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a run, and the script of bash."""
    made = tmp_path_factory.mktemp("completion")
    script = Stepscope(made)("completion", "bash").out
    (made / "completion.bash").write_text(script)
    (made / "runs" / "first-run").mkdir(parents=True)
    (made / "runs" / "first-run" / "run.json").write_text("{}")
    (made / "runs" / "no-run").mkdir()
    return made


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("mem", ["memory"]),
        ("accel ", ["estimate", "score", "search"]),
        ("run --optimizer ada", ["adagrad", "adadelta", "adam", "adamw"]),
        ("workers --data ci", ["cifar10"]),
        ("max-batch --model lene", ["lenet"]),
        ("lab optim", ["optimizers"]),
        ("report runs/", ["runs/first-run"]),
        ("export ", ["runs/first-run"]),
    ],
)
def test_bash_offers(folder, typed, offered):
    pytest.importorskip("cyclopts.completion._engine", reason="cyclopts 4 offers no values")
    beside = Path(sys.executable).parent  # the command that the script calls
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", COMPLETE, "-", "stepscope", *typed.split(" ")],
        cwd=folder,
        env={**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.split()) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_knows_every_command(stepscope, shell):
    answer = stepscope("completion", shell)
    assert answer.code == 0
    assert all(name in answer.out for name in ("max-batch", "bottleneck", "--learning-rate"))


def test_another_shell_is_refused(stepscope):
    answer = stepscope("completion", "tcsh")
    assert answer.is_refused(2, "bash")

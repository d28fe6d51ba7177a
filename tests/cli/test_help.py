"""Help is quick, complete, and needs nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.cli.main import make_app
from stepscope.settings.run_settings import field_names

COMMANDS = [name for name in make_app() if not name.startswith("-")]


def test_help_lists_every_command(stepscope):
    answer = stepscope("--help")
    assert answer.code == 0
    for command in COMMANDS:
        assert command in answer.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(stepscope, command):
    answer = stepscope(command, "--help")
    assert answer.code == 0
    assert len(answer.out.splitlines()) > 5


def test_every_setting_is_a_flag(stepscope):
    shown = stepscope("run", "--help").out
    for name in field_names():
        assert f"--{name.replace('_', '-')}" in shown


def test_version(stepscope):
    assert stepscope("--version").out.strip().count(".") == 2


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from stepscope.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    print({'torch', 'numpy', 'pydantic', 'psutil'} & {*sys.modules})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.stdout.endswith(b"set()\n")

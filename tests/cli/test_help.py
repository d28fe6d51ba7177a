"""Help is quick, complete, and needs nothing heavy."""

import subprocess
import sys

import pytest

from stepscope.cli.main import make_app
from stepscope.settings.run_settings import GROUPS, field_names

COMMANDS = [name for name in make_app() if not name.startswith("-")]


def test_help_lists_every_command_on_one_screen(stepscope):
    shown = stepscope.succeed("--help").out
    assert all(command in shown for command in COMMANDS)
    assert len(shown.splitlines()) < 24
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(stepscope, command):
    assert len(stepscope.succeed(command, "--help").out.splitlines()) > 5


def test_without_arguments_there_are_three_commands_to_start_with(stepscope):
    answer = stepscope()
    assert answer.code == 0
    assert all(f"stepscope {each}" in answer.out for each in ("trace", "workers", "run", "--help"))


def test_every_setting_is_a_flag_of_run_under_one_heading(stepscope):
    shown = stepscope("run", "--help").out
    for name in field_names():
        assert f"--{name.replace('_', '-')}" in shown
    assert all(f"─ {heading} ─" in shown for heading in GROUPS)
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(field_names())


@pytest.mark.parametrize(
    "command", [("workers",), ("max-batch",), ("sweep",), ("lab",), ("accel", "search")]
)
def test_commands_that_take_every_setting_list_only_their_own_flags(stepscope, command):
    shown = stepscope(*command, "--help").out
    assert "--weight-decay" not in shown
    assert "--help-settings" in shown
    assert stepscope(*command, "--help-settings").out == stepscope("run", "--help").out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fit lenet", "max-batch lenet"),
        ("stalls", "bottleneck"),
        ("estimate lenet --spatial 8x16", "accel estimate lenet --spatial 8x16"),
        ("score runs/latest", "accel score runs/latest"),
        ("search", "accel search"),
    ],
)
def test_an_old_name_of_a_command_is_refused_with_the_new_one(stepscope, old, new):
    answer = stepscope(*old.split())
    assert answer.code == 2
    assert answer.err.endswith(f"Type: stepscope {new}\n")


def test_pytorch_names_of_settings_are_accepted(stepscope):
    flags = ("--num-workers", 1, "--prefetch-factor", 3, "--learning-rate", 0.5)
    spec = stepscope("run", "--samples", 64, "--max-steps", 1, *flags, "--json").json["spec"]
    assert (spec["workers"], spec["prefetch"], spec["lr"]) == (1, 3, 0.5)


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

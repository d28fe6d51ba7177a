"""A machine is prepared as the protocol asks, and everything is put back as it was."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machine_trees import (
    JETSON_AGX_XAVIER,
    JETSON_ORIN,
    JETSON_XAVIER_NX,
    JETSONS,
    LAPTOP,
    RASPBERRY_PI,
    VIRTUAL_MACHINE,
    Tree,
    add_nvpmodel,
    write_tree,
)

from stepscope.errors import MachineError, RequestError
from stepscope.hardware.conditions import read_conditions
from stepscope.hardware.cpu_clock import policies
from stepscope.hardware.machine_setup import (
    apply,
    changes,
    kept_file,
    kept_states,
    protocol,
    restore,
)

pytestmark = pytest.mark.usefixtures("own_state")


def board(tree: Tree, folder: Path) -> Path:
    root = write_tree(tree, folder)
    add_nvpmodel(root)
    return root


def texts(root: Path) -> dict[str, str]:
    """Give what every file says, but for the blanks that end it and the memory's rate."""
    files = (file for file in root.rglob("*") if file.is_file())
    return {str(file): file.read_text().strip() for file in files if file.name not in RATES}


# What is set beside what holds it: the kernel moves it on its own as soon as it is let go.
RATES = ("rate", "clk_update_rate")


def prepare(root: Path, **wanted: str) -> None:
    apply(changes({**protocol(root), **wanted}, root), root)


@pytest.mark.parametrize("tree", JETSONS, ids=lambda tree: tree.name)
def test_a_board_is_set_as_the_protocol_asks_and_put_back(tmp_path, tree):
    root = board(tree, tmp_path)
    before = texts(root)
    prepare(root)
    found = {name: reading.value for name, reading in read_conditions(root).items()}
    assert {name: found[name] for name in protocol(root)} == protocol(root)
    assert changes(protocol(root), root) == [], "nothing is left to set"
    restore(root)
    assert texts(root) == before
    assert not kept_file(root).exists()


def test_a_board_whose_cpus_are_off_gets_them_set_and_put_back_too(tmp_path):
    root = board(JETSON_XAVIER_NX, tmp_path)
    prepare(root)
    governors = sorted(root.glob("sys/devices/system/cpu/cpufreq/policy*/scaling_governor"))
    assert [file.read_text() for file in governors] == ["performance"] * 6
    restore(root)
    assert [(file / "remembered").read_text().strip() for file in governors[2:]] == [
        "schedutil"
    ] * 4


def test_what_is_of_cpus_that_are_off_is_put_back_after_the_power_mode(tmp_path):
    root = board(JETSON_XAVIER_NX, tmp_path)
    subprocess.run([root / "usr/sbin/nvpmodel", "-m", "2"], check=True)
    before = texts(root)
    prepare(root, power_mode="MODE_10W_2CORE")
    assert read_conditions(root)["governor"].value == "performance"
    assert restore(root)[-2:] == ["clocks", "governor"]
    assert texts(root) == before


@pytest.mark.parametrize("affected", ["", "\n", None])
def test_a_policy_without_a_cpu_that_is_online_is_left_out(tmp_path, affected):
    root = write_tree(RASPBERRY_PI, tmp_path)
    file = root / "sys/devices/system/cpu/cpufreq/policy3/affected_cpus"
    file.unlink()
    if affected is None:
        file.mkdir()  # it cannot be read
    else:
        file.write_text(affected)
    assert [policy.name for policy in policies(root)] == ["policy0", "policy1", "policy2"]
    file.rmdir() if affected is None else file.unlink()
    assert len(policies(root)) == 4  # an old kernel has no such file


def test_a_governor_that_is_not_offered_is_not_asked_for(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    for file in root.rglob("scaling_available_governors"):
        file.write_text("ondemand powersave\n")
    assert protocol(root) == {"clocks": "fixed"}


def test_a_power_mode_is_set_before_the_clocks_that_it_bounds(tmp_path):
    root = board(JETSON_AGX_XAVIER, tmp_path)
    names = [change["name"] for change in changes(protocol(root), root)]
    assert names == ["power_mode", "governor", "clocks", "memory_clock", "fan"]


def test_what_the_protocol_does_not_ask_can_be_set_too(tmp_path):
    root = write_tree(LAPTOP, tmp_path)
    prepare(root, turbo="off")
    assert read_conditions(root)["turbo"].value == "off"
    restore(root)
    assert read_conditions(root)["turbo"].value == "on"


def test_a_machine_that_has_nothing_to_set_is_left_as_it_is(tmp_path):
    root = write_tree(VIRTUAL_MACHINE, tmp_path)
    prepare(root)
    assert not kept_file(root).exists()
    assert restore(root) == []


def test_a_second_preparation_does_not_forget_what_was_before_the_first(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    prepare(root)
    kept = kept_file(root).read_text()
    planned = changes({"governor": "powersave"}, root)
    with pytest.raises(MachineError, match="not restored yet"):
        apply(planned, root)
    assert kept_file(root).read_text() == kept


def test_of_two_that_prepare_at_once_one_is_refused(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    planned = changes(protocol(root), root)
    with ThreadPoolExecutor(8) as several:
        begun = [several.submit(apply, planned, root) for _ in range(8)]
    failures = [each.exception() for each in begun]
    assert failures.count(None) == 1
    assert all(isinstance(failure, MachineError) for failure in failures if failure is not None)
    restore(root)
    assert read_conditions(root)["governor"].value == "ondemand"
    assert list(kept_file(root).parent.iterdir()) == []


def test_what_root_keeps_is_kept_where_everybody_looks(tmp_path, monkeypatch):
    root = write_tree(RASPBERRY_PI, tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    umask = os.umask(0o077)
    prepare(root)
    os.umask(umask)
    file = kept_file(root)
    assert file == root / "var/lib/stepscope/machine-before.json"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert kept_file(root) == file
    assert [name for name, _ in kept_states(root)] == ["governor", "clocks"]
    restore(root)
    assert kept_file(root) == tmp_path / "home/.local/state/stepscope/machine-before.json"


def test_a_kept_file_that_cannot_be_removed_is_a_fault_of_the_machine(tmp_path, monkeypatch):
    def refuse(file: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    root = write_tree(RASPBERRY_PI, tmp_path)
    prepare(root)
    monkeypatch.setattr(Path, "unlink", refuse)  # root itself is refused nothing
    with pytest.raises(MachineError, match=r"machine-before\.json cannot be removed"):
        restore(root)
    assert read_conditions(root)["governor"].value == "ondemand"


def test_who_has_no_home_is_told_where_it_cannot_be_kept(tmp_path, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    root = write_tree(RASPBERRY_PI, tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    (root / "var").write_text("no folder")
    with pytest.raises(MachineError, match=r"var/lib/stepscope.*XDG_STATE_HOME"):
        prepare(root)
    assert read_conditions(root)["governor"].value == "ondemand"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"power_mode": "30W"}, "15W, 7W"),
        ({"governor": "warp"}, "ondemand, performance, schedutil"),
        ({"clocks": "fast"}, "offers fixed"),
        ({"fan": "300"}, "max, or 0 to 255"),
        ({"turbo": "off"}, "no switch for turbo"),
    ],
)
def test_what_this_machine_cannot_have_is_refused_by_name(tmp_path, wanted, said):
    with pytest.raises(MachineError, match=said):
        changes(wanted, board(JETSON_ORIN, tmp_path))


def test_where_one_thing_cannot_be_set_the_others_are_put_back(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    lowest = root / "sys/devices/system/cpu/cpufreq/policy3/scaling_min_freq"
    planned = changes(protocol(root), root)
    lowest.unlink()
    lowest.symlink_to("/proc/version")  # a file that nobody can write, not even root
    with pytest.raises(MachineError, match=r"As root: echo 1500000 \| sudo tee .*policy3"):
        apply(planned, root)
    assert read_conditions(root)["governor"].value == "ondemand"


def test_a_power_mode_that_cannot_be_set_says_why_and_which_command(tmp_path):
    root = board(JETSON_XAVIER_NX, tmp_path)
    program = root / "usr/sbin/nvpmodel"
    program.write_text("#!/bin/sh\necho NVPM ERROR: run as root >&2\nexit 1\n")
    with pytest.raises(MachineError, match=r"run as root\. As root: sudo nvpmodel -m 2"):
        prepare(root)
    program.unlink()  # no other machine's is taken
    with pytest.raises(MachineError, match="usr/sbin/nvpmodel"):
        prepare(root)


def test_what_cannot_be_put_back_stays_kept(tmp_path):
    root = board(JETSON_XAVIER_NX, tmp_path)
    prepare(root)
    (root / "usr/sbin/nvpmodel").unlink()
    with pytest.raises(MachineError, match="not all settings could be restored"):
        restore(root)
    assert [name for name, _ in kept_states(root)] == ["power_mode"]
    add_nvpmodel(root)
    assert restore(root) == ["power_mode"]
    assert read_conditions(root)["power_mode"].value == "MODE_10W_2CORE"


@pytest.mark.parametrize(
    "kept",
    [
        "not json",
        "[]",
        '{"root": "ROOT", "states": [["governor", {"etc/passwd": "x"}]]}',
        '{"root": "ROOT", "states": [["governor", {"sys/../etc/passwd": "x"}]]}',
        '{"root": "ROOT", "states": [["wallpaper", {"sys/a": "x"}]]}',
        '{"root": "/elsewhere", "states": []}',
    ],
)
def test_a_kept_file_that_is_not_ours_sets_nothing(tmp_path, kept):
    root = write_tree(RASPBERRY_PI, tmp_path)
    before = texts(root)
    kept_file(root).parent.mkdir(parents=True)
    kept_file(root).write_text(kept.replace("ROOT", str(root)))
    with pytest.raises(RequestError):
        restore(root)
    assert texts(root) == before

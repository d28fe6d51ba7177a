"""Doctor names each machine, its power mode and its sensors, and gives reasons for the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_trees import (
    JETSON_NANO,
    LAPTOP,
    RASPBERRY_PI,
    TREES,
    VIRTUAL_MACHINE,
    Tree,
    write_tree,
)

from stepscope.doctor.board_checks import check_board
from stepscope.doctor.cpu_checks import check_processor
from stepscope.doctor.instrument_checks import check_energy
from stepscope.doctor.memory_checks import check_memory, worth_naming
from stepscope.doctor.storage_checks import check_storage
from stepscope.hardware.machine_setup import apply, changes, kept_file
from stepscope.records.types import MachineCheck

pytestmark = pytest.mark.usefixtures("own_state")


def look(root: Path) -> dict[str, MachineCheck]:
    checks = [*check_board(root), *check_processor(root), *check_memory(root)]
    return {check["name"]: check for check in checks}


@pytest.mark.parametrize(
    ("tree", "board", "power_mode", "sensors"),
    [
        (JETSON_NANO, "Jetson Nano", "MAXN", ["POM_5V_IN", "POM_5V_GPU"]),
        (LAPTOP, "ThinkPad", None, ["package-0", "psys"]),
        (VIRTUAL_MACHINE, "QEMU", None, []),
    ],
    ids=lambda case: case.name if isinstance(case, Tree) else None,
)
def test_doctor_names_the_board_its_power_mode_and_its_sensors(
    tmp_path, monkeypatch, tree, board, power_mode, sensors
):
    monkeypatch.setattr("stepscope.doctor.instrument_checks._WATCHED_S", 0.01)
    root = write_tree(tree, tmp_path)
    found = look(root)
    assert board in found["board"]["found"]
    mode = found["power_mode"]
    assert (mode["status"] == "absent") == (power_mode is None)
    assert power_mode is None or mode["found"].startswith(f"{power_mode} (")
    energy = check_energy(root)
    assert all(sensor in energy["found"] for sensor in sensors)
    assert (energy["status"] == "absent") == (not sensors)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_every_check_says_why_it_matters_and_a_warning_what_to_do(tmp_path, tree):
    for check in look(write_tree(tree, tmp_path)).values():
        assert check["found"]
        assert check["why"]
        assert check["advice"] or check["status"] != "warning"


def test_a_machine_as_the_protocol_wants_it_is_warned_of_nothing_it_could_set(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    assert look(root)["governor"]["status"] == "warning"
    apply(changes({"governor": "performance", "clocks": "fixed"}, root), root)
    found = look(root)
    assert (found["governor"]["status"], found["clocks"]["status"]) == ("ok", "ok")
    assert found["prepared"]["status"] == "warning"
    assert str(kept_file(root)) in found["prepared"]["found"]


def test_a_kept_file_that_cannot_be_read_is_a_warning_and_no_fault(tmp_path):
    root = write_tree(VIRTUAL_MACHINE, tmp_path)
    kept_file(root).parent.mkdir(parents=True)
    kept_file(root).write_text("garbage")
    assert look(root)["prepared"]["status"] == "warning"


def test_processes_of_one_name_are_each_named_the_largest_first():
    held = [("python", 4), ("sway", 1), ("python", 60), ("postgres", 30), ("python", 20), ("sh", 1)]
    named, with_desktop = worth_naming(held, total_bytes=100)
    assert named == [("python", 60), ("postgres", 30), ("python", 20), ("sway", 1)]
    assert with_desktop
    assert worth_naming([("sway", 50)], total_bytes=100) == ([("sway", 50)], True)
    assert worth_naming([("sh", 1)], total_bytes=100) == ([], False)


def test_swap_in_use_and_memory_packed_into_memory_are_warnings(tmp_path):
    found = look(write_tree(LAPTOP, tmp_path / "laptop"))["swap"]
    assert found["status"] == "warning"
    assert "1.0 GiB of 8.0 GiB used" in found["found"]
    found = look(write_tree(JETSON_NANO, tmp_path / "nano"))
    assert (found["zram"]["status"], found["swap"]["status"]) == ("warning", "ok")


def test_heat_and_a_busy_machine_are_warnings(tmp_path):
    root = write_tree(LAPTOP, tmp_path)
    (root / "sys/class/thermal/thermal_zone1/temp").write_text("93000\n")
    found = look(root)
    assert {found[name]["status"] for name in ("temperature", "throttling", "load")} == {"warning"}


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_garbage_in_every_file_is_survived_with_reasons(tmp_path, tree):
    root = write_tree(tree, tmp_path)
    for file in root.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\xff\x00garbage\n\n: , = -1e999\n")
    found = look(root)
    assert found["governor"]["status"] in ("warning", "absent")
    assert all(check["found"] for check in found.values())


def test_the_medium_under_the_data_and_a_read_of_it_are_told(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    found = {check["name"]: check for check in check_storage(Path("/"), tmp_path)}
    assert "1 file" in found["read_test"]["found"]
    assert found.keys() == {"storage", "read_test", "page_cache"}

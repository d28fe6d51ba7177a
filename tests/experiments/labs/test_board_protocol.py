"""What a machine lacks of the edge protocol is named, and ends no lab."""

from __future__ import annotations

from pathlib import Path

from machine_trees import JETSON_XAVIER_NX, RASPBERRY_PI, VIRTUAL_MACHINE, write_tree

from stepscope.experiments.labs.lab_trials import not_fixed


def missing(root: Path) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in not_fixed(root)}


def test_a_board_and_a_virtual_machine_give_reasons(tmp_path: Path) -> None:
    found = missing(write_tree(JETSON_XAVIER_NX, tmp_path / "board"))
    assert found.keys() == {"power mode", "governor", "clocks", "memory clock", "fan"}
    assert found["governor"].startswith("wanted performance, found schedutil")
    assert all(missing(write_tree(VIRTUAL_MACHINE, tmp_path / "machine")).values())


def test_a_governor_that_is_not_offered_is_missing(tmp_path: Path) -> None:
    root = write_tree(RASPBERRY_PI, tmp_path)
    for file in root.rglob("scaling_available_governors"):
        file.write_text("ondemand\n")
    assert "does not offer" in missing(root)["governor"]


def test_an_unreadable_file_is_missing_and_no_internal_error(tmp_path: Path) -> None:
    root = write_tree(RASPBERRY_PI, tmp_path)
    governor = root / "sys/devices/system/cpu/cpufreq/policy2/scaling_governor"
    governor.unlink()
    governor.mkdir()
    assert "policy2/scaling_governor" in missing(root)["governor"]

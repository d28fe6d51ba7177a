"""What of the edge protocol a machine has not is named, and ends no lab."""

from __future__ import annotations

from pathlib import Path

from machine_trees import JETSON_XAVIER_NX, RASPBERRY_PI, VIRTUAL_MACHINE, Tree, write_tree

from stepscope.experiments.labs.board_protocol import not_fixed


def missing(tree: Tree, folder: Path) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in not_fixed(write_tree(tree, folder))}


def test_a_board_with_cpus_that_are_off_says_what_would_be_set(tmp_path: Path) -> None:
    found = missing(JETSON_XAVIER_NX, tmp_path)
    assert found.keys() == {"power mode", "governor", "clocks", "memory clock", "fan"}
    assert found["governor"].startswith("it is schedutil, wanted performance")


def test_a_machine_that_has_nothing_of_it_gives_reasons(tmp_path: Path) -> None:
    assert all(missing(VIRTUAL_MACHINE, tmp_path).values())


def test_a_governor_that_is_not_offered_is_missing(tmp_path: Path) -> None:
    root = write_tree(RASPBERRY_PI, tmp_path)
    for file in root.rglob("scaling_available_governors"):
        file.write_text("ondemand\n")
    found = {each["name"]: each["reason"] for each in not_fixed(root)}
    assert found["governor"] == "it is ondemand; the protocol's is not offered."


def test_a_file_that_cannot_be_read_is_missing_and_no_fault(tmp_path: Path) -> None:
    root = write_tree(RASPBERRY_PI, tmp_path)
    governor = root / "sys/devices/system/cpu/cpufreq/policy2/scaling_governor"
    governor.unlink()
    governor.mkdir()
    found = {each["name"]: each["reason"] for each in not_fixed(root)}
    assert "policy2/scaling_governor cannot be read" in found["governor"]

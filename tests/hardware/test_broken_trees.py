"""Whatever stands in the place of a machine's files, it is looked at to the end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from machine_trees import TREES, write_tree

from stepscope.hardware.conditions import describe_conditions
from stepscope.hardware.energy import find_sensors
from stepscope.hardware.machine_setup import is_prepared
from stepscope.telemetry.telemetry_sampler import Surroundings

GARBAGE = bytes(range(256)) * 400


def look_at(root: Path) -> None:
    """Look at what a run looks at of its machine, before it and while it goes on."""
    said = json.dumps(describe_conditions(root), allow_nan=False)
    assert len(said) < 10_000, "a record is no place for garbage"
    for sensor in find_sensors(root).working:
        assert sensor.name.isprintable()
    around = Surroundings(root, lambda kind, time_s, **detail: None, lambda: None)
    for time_s in (0.0, 2.0):
        around.read(time_s, time_s)
    is_prepared(root)


def to_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def to_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def to_circle(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def to_garbage(file: Path) -> None:
    file.write_bytes(GARBAGE)


@pytest.mark.parametrize("spoil", [to_folder, to_pipe, to_circle, to_garbage])
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_files_that_are_something_else_are_looked_at_and_none_hangs(tree, spoil, tmp_path):
    root = write_tree(tree, tmp_path)
    for file in [each for each in root.rglob("*") if each.is_file()]:
        spoil(file)
    look_at(root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
@pytest.mark.parametrize("mode", [0o000, 0o444], ids=["neither listed nor entered", "listed only"])
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_a_folder_in_which_one_may_not_look_is_as_if_it_were_not_there(tree, mode, tmp_path):
    root = write_tree(tree, tmp_path)
    for folder in [each for each in root.rglob("*") if each.is_dir()]:
        folder.chmod(mode)
        try:
            look_at(root)
        finally:
            folder.chmod(0o755)

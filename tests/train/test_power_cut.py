"""A power cut during a run: what a checkpoint depends on is on disk before it."""

import json
import random

import pytest
import torch
from forgetful_disk import ForgetfulDisk
from user_networks import same_weights

from stepscope.records import folder_sync, run_folder
from stepscope.records.folder_sync import FolderSync
from stepscope.records.run_reader import load_run
from stepscope.settings.load_settings import validate

LONG = {"samples": 192, "batch_size": 32, "epochs": 4, "threads": 1}
STEPS = 6  # of an epoch
IN_THE_SECOND_EPOCH = 19
CUTS, RESUMED = 200, 3


@pytest.fixture
def disk(train, tmp_path, monkeypatch):
    """The disk of a run that was stopped once and resumed."""
    monkeypatch.setattr(folder_sync, "SYNC_EVERY_S", 0.01)
    spec = validate({**LONG, "out": str(tmp_path / "runs")})
    made = run_folder.create(tmp_path / "runs", "cut", "run", spec.model_dump(mode="json"))
    recorded = ForgetfulDisk(made.path)
    with recorded.recording():
        for looks in (IN_THE_SECOND_EPOCH, 10**9):
            with FolderSync(made):
                train(made.path, looks_before_stop=looks)
    return recorded


def rows_of(run, split=None):
    if split is None:
        return list(zip(run.steps["epoch"], run.steps["step"], strict=True))
    return [row["epoch"] for row in run.epoch_rows(split)]


def claimed(file):
    """The steps and epochs that were done at a checkpoint: test 0, train 1, test 1, and so on."""
    position = torch.load(file, weights_only=True)["progress"]["position"]
    epochs, rest = divmod(position["stage"], 2)
    trained = [(epoch, step) for epoch in range(1, epochs + 1) for step in range(1, STEPS + 1)]
    if rest:
        trained += [(epochs + 1, step) for step in range(1, position["step"] + 1)]
    return trained, list(range(1, epochs + rest)), list(range(epochs + rest))


def test_nothing_that_a_checkpoint_claims_is_missing_after_a_power_cut(
    disk, train, trained, tmp_path
):
    # Only rows after the checkpoint, which are removed before a resume, are waited for.
    assert set(disk.synced_by_trainer) <= {"", disk.folder.name}
    assert len(disk.moments) > 50
    chance, with_checkpoint = random.Random(4), []
    for cut in range(CUTS):
        at = chance.randrange(len(disk.moments))
        left = disk.after_a_cut(at, chance, tmp_path / f"cut {cut}")
        for name in ("checkpoint.pt", "checkpoint.earlier.pt"):
            if not (left / name).exists():
                continue
            steps, epochs, tests = claimed(left / name)
            run = load_run(left)
            assert rows_of(run)[: len(steps)] == steps, (cut, at, name)
            assert rows_of(run, "train")[: len(epochs)] == epochs, (cut, at, name)
            assert rows_of(run, "test")[: len(tests)] == tests, (cut, at, name)
            with_checkpoint.append(left)
    assert len(with_checkpoint) > CUTS / 2
    whole = trained(**LONG)
    for left in chance.sample(with_checkpoint, RESUMED):
        info = json.loads((disk.folder / "run.json").read_text())
        (left / "run.json").write_text(json.dumps(info))
        run_folder.RunFolder(left).restore_missing_files()
        resumed = train(left)
        assert resumed.steps["loss"] == whole.steps["loss"]
        assert rows_of(resumed) == rows_of(whole)
        assert same_weights(resumed, whole)


def test_rows_are_synced_while_a_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_sync, "SYNC_EVERY_S", 0.001)
    made = run_folder.create(tmp_path, "long", "trace", {})
    disk = ForgetfulDisk(made.path)
    with disk.recording(), FolderSync(made):
        (made.path / "telemetry.csv").write_text("rows")
        while not any(b"rows" in moment.contents.values() for moment in disk.moments):
            pass

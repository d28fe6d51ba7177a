"""Trainings on a folder of images: whole, and as a person would start them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from stepscope_command import Stepscope
from torch import nn

from stepscope.analyze.run_summary import bad_samples

FOLDER = {"data": "folder", "input": "3,16,16", "samples": None, "batch_size": 4}
NETWORK = "test_image_folders:small"


def small(num_classes: int) -> nn.Module:
    """Make the quickest thing that learns from 16x16 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, num_classes))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Make red and blue images, of which one training and one test image are broken."""
    for split, count in (("train", 8), ("val", 3)):
        for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (20 + number, 30 - number), colour)
                image.save(folder / f"{number}.jpg")
        (tmp_path / "photos" / split / "blue" / "1.jpg").write_text("no image")
    return tmp_path / "photos"


def bad_paths(run) -> list[str]:
    events = [event for event in run.events if event["event"] == "bad_sample"]
    return sorted("/".join(Path(event["path"]).parts[-3:]) for event in events)


@pytest.fixture
def settings(photos: Path) -> dict[str, object]:
    return {"model": NETWORK, "data_dir": str(photos), "forecast": False, **FOLDER}


def test_it_learns_and_each_broken_image_is_told_of_once(train, settings):
    run = train(**settings, epochs=3)
    assert bad_paths(run) == ["train/blue/1.jpg", "val/blue/1.jpg"]
    assert bad_samples(run) == 2
    tests = [row for row in run.epochs.rows() if row["split"] == "test"]
    assert tests[-1]["accuracy"] == 1.0
    assert [row["samples"] for row in run.epochs.rows()] == [6, 16, 6, 16, 6, 16, 6]
    assert run.spec["source"] == "local"


def test_losses_are_the_same_whoever_loads_and_from_wherever(train, settings):
    alone, *others = (
        train(**settings, **more)
        for more in ({}, {"workers": 2}, {"source": "memory", "pipeline": "sample"})
    )
    for run in others:
        assert run.steps["loss"] == alone.steps["loss"]
        assert bad_paths(run) == ["train/blue/1.jpg", "val/blue/1.jpg"], "told of once"


def test_a_run_that_goes_on_counts_an_image_that_it_meets_again_once(train, settings):
    run = train(looks_before_stop=8, **settings)
    run = train(run.path, forecast=False)
    assert set(bad_paths(run)) == {"train/blue/1.jpg", "val/blue/1.jpg"}
    assert bad_samples(run) == 2


def test_memory_is_forecast_with_the_files_as_they_are(train, photos, settings):
    messages: list[dict] = []
    train(**{**settings, "forecast": True}, source="memory", workers=1, messages=messages)
    forecast = next(each for each in messages if each["type"] == "forecast")["forecast"]
    size = sum(file.stat().st_size for file in photos.rglob("*.jpg"))
    assert forecast["items"]["dataset"]["bytes"] == size
    assert forecast["items"]["workers"]["bytes"] > 0


ASKED = ("--data", "folder", "--model", "lenet", "--input", "3,32,32", "--batch-size", "4")


def test_a_person_sees_how_many_images_could_not_be_read(stepscope: Stepscope, photos: Path):
    quick = ("--data-dir", photos, "--epochs", "1", "--max-steps", "4", "--threads", "1")
    found = stepscope("run", *ASKED, *quick)
    assert found.code == 0, found.err
    assert "2 samples could not be read and were skipped" in found.out
    info = json.loads((stepscope.folder / "runs" / "latest" / "run.json").read_text())
    assert info["summary"]["bad_samples"] == 2
    assert info["spec"]["input"] == [3, 32, 32]


def test_a_run_that_is_to_fail_at_a_broken_image_ends_with_3_and_its_name(
    stepscope: Stepscope, photos: Path
):
    quick = ("--data-dir", photos, "--workers", 1, "--no-evaluate", "--epochs", 1, "--threads", 1)
    found = stepscope("run", *ASKED, *quick, "--on-bad-sample", "fail", "--json")
    assert found.code == 3
    assert "train/blue/1.jpg: not a readable image" in found.json["reason"]
    assert found.json["reason"].endswith("use --on-bad-sample skip.")


@pytest.mark.long
def test_resnet18_learns_tiny_imagenet_in_two_epochs(stepscope: Stepscope, shared_data: Path):
    folder = shared_data / "tiny-imagenet-10"
    if not folder.is_dir():
        pytest.skip("no tiny-imagenet-10 beside the repository (../shared/data)")
    found = stepscope(
        *("run", "--data", "folder", "--data-dir", folder, "--input", "3,64,64", "--json"),
        *("--model", "resnet18_imagenet", "--epochs", "2", "--batch-size", "32"),
    )
    assert found.code == 0, found.err
    assert found.json["summary"]["bad_samples"] == 0
    assert found.json["summary"]["test_accuracy"] > 0.15  # ten classes: 0.1 is chance

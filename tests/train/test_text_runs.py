"""Trainings on texts: whole, and as a person would start them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from stepscope_command import Stepscope
from torch import nn

from stepscope.errors import RequestError
from stepscope.models import registry
from stepscope.models.mobilebert import MobileBert
from stepscope.settings.load_settings import validate
from stepscope.supervisor import preflight

GOOD, BAD = ("a fine film", "fine , and funny"), ("a dull film", "neither new nor funny , alas")
OWN = "test_text_runs:bag_of_words"


class Bag(nn.Module):
    """Score a text by the words that are in it, padding left out; the quickest that learns."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30_522, 8, padding_idx=0)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(8, num_classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(self.dropout(self.embedding(tokens).sum(1)))
        return scores


def bag_of_words(num_classes: int) -> nn.Module:
    return Bag(num_classes)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    folder = tmp_path / "reviews"
    folder.mkdir()
    for name, times in (("train", 12), ("dev", 2)):
        rows = [f"{good}\t1\n{bad}\t0\n" for good, bad in zip(GOOD, BAD, strict=True)] * times
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    return folder


@pytest.fixture
def settings(reviews: Path) -> dict[str, Any]:
    chosen = {"optimizer": "adam", "lr": 0.05, "batch_size": 10, "samples": None}
    return {"data": "text", "data_dir": str(reviews), "model": OWN, "forecast": False, **chosen}


def test_it_learns_and_is_recorded_as_images_are(train, settings):
    run = train(**settings, epochs=3)
    assert [row["samples"] for row in run.epochs.rows()] == [8, 48, 8, 48, 8, 48, 8]
    tests = [row for row in run.epochs.rows() if row["split"] == "test"]
    assert tests[-1]["accuracy"] == tests[-1]["top5"] == 1.0
    assert len(run.steps["loss"]) == 15
    for phase in ("data_s", "transfer_s", "forward_s", "backward_s", "optimizer_s", "load_s"):
        assert all(seconds > 0 for seconds in run.steps[phase]), phase
    records = (run.path / "records.csv").read_text().splitlines()
    assert len(records) == 1 + 4 + 3 * 2  # a header, the tests, two of each epoch
    assert run.spec["memory_format"] == "contiguous"


def test_memory_is_forecast_for_the_longest_text_that_may_come(train, settings):
    messages: list[dict[str, Any]] = []
    asked = {**settings, "forecast": True, "model": "mobilebert-small", "sequence_length": 16}
    train(**asked, workers=1, max_steps=1, messages=messages)
    forecast = next(each for each in messages if each["type"] == "forecast")["forecast"]
    assert forecast["items"]["batch"]["bytes"] == 10 * (16 + 1) * 8
    assert forecast["items"]["batch"]["note"].startswith("10 texts of up to 16 tokens")
    assert forecast["items"]["dataset"]["note"] == "56 texts"
    assert forecast["items"]["workers"]["bytes"] > 0
    assert forecast["items"]["parameters"]["bytes"] > 950_274 * 4


def test_synthetic_batches_are_texts_of_the_whole_length(train, settings):
    run = train(**{**settings, "source": "synthetic"}, sequence_length=9)
    assert len(run.steps["loss"]) == 10
    assert run.spec["evaluate"] is False


def test_activations_can_be_recomputed(train, settings):
    asked = {**settings, "model": "mobilebert-small", "lr": 0.001, "max_steps": 2}
    kept, recomputed = (
        train(**asked, checkpoint_activations=again).steps["loss"] for again in (False, True)
    )
    assert kept == pytest.approx(recomputed, rel=1e-5)


def test_a_network_of_images_of_ones_own_is_refused_with_what_it_was_given(train, settings):
    with pytest.raises(RequestError, match=r"fails on texts of 128 \(text\): "):
        train(**{**settings, "model": "user_networks:linear"})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = registry.build("mobilebert-small", classes=3)
    assert isinstance(model, MobileBert)
    model.network.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_run_tells_what_it_took_of_a_checkpoint(train, settings, checkpoint):
    asked = {**settings, "model": "mobilebert-small", "lr": 1e-5, "weights": str(checkpoint)}
    messages: list[dict[str, Any]] = []
    run = train(**asked, max_steps=1, messages=messages)
    (event,) = [each for each in run.events if each["event"] == "weights"]
    assert event["fresh"] == ["classifier.weight", "classifier.bias"]
    assert event["has_vocabulary"] is False
    assert [each["type"] for each in messages].count("weights") == 1

    words = sorted({word for text in (*GOOD, *BAD) for word in text.split()})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    (checkpoint / "vocab.txt").write_text("\n".join(tokens))
    again = train(**asked, max_steps=1)
    (event,) = [each for each in again.events if each["event"] == "weights"]
    assert event["has_vocabulary"] is True
    assert again.steps["loss"] != run.steps["loss"]


SMALL = {"model": "mobilebert-small"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model": "lenet"}, "model lenet takes images, but the samples of text are texts"),
        (
            {**SMALL, "data": "shapes"},
            "model mobilebert-small takes texts, but the samples of shapes are images",
        ),
        ({**SMALL, "source": "local"}, "source: texts are small"),
        ({**SMALL, "page_cache": "cold"}, "source: texts are small"),
        ({**SMALL, "weights": "nowhere"}, "nowhere is not a folder"),
        ({**SMALL, "memory_format": "channels_last"}, "memory_format: needs contiguous"),
        ({**SMALL, "pipeline": "sample"}, "pipeline: needs batch with data text"),
        ({**SMALL, "augment": True}, "augment: needs none with data text, found crop-flip"),
        ({"data": "shapes", "sequence_length": 64}, "sequence_length: needs data text"),
        ({**SMALL, "sequence_length": 2}, "sequence_length: wanted greater than or equal to 3"),
    ],
)
def test_what_does_not_fit_together_is_refused_beforehand(
    reviews: Path, asked: dict[str, Any], message: str
):
    with pytest.raises(RequestError, match=message):
        preflight.check(
            validate({"data": "text", "data_dir": str(reviews), "batch_size": 8, **asked})
        )


@pytest.mark.long
def test_mobilebert_small_learns_sst2_to_75_percent_in_ten_minutes(
    stepscope: Stepscope, shared_data: Path
):
    folder = shared_data / "sst2"
    if not folder.is_dir():
        pytest.skip("no sst2 beside the repository (../shared/data)")
    process = stepscope.start(
        *("run", "--data", "text", "--data-dir", folder, "--model", "mobilebert-small"),
        *("--optimizer", "adamw", "--lr", "0.001", "--sequence-length", "64"),
        *("--epochs", "1", "--max-steps", "300", "--json"),
    )
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert json.loads(out)["summary"]["test_accuracy"] >= 0.75

"""A run as scalars, read back by TensorBoard itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from written_tables import STARTED_UNIX_S, epoch_row, step, write_tables

from stepscope.records.run_reader import Run
from stepscope.report.export import tensorboard_events

Series = list[tuple[int, float]]


def read_back(run: Run, folder: Path) -> EventAccumulator:
    folder.mkdir()
    content = b"".join(piece for piece, _ in tensorboard_events.encode(run))
    (folder / tensorboard_events.FILE).write_bytes(content)
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def series(read: EventAccumulator, tag: str) -> Series:
    return [(event.step, event.value) for event in read.Scalars(tag)]


def test_steps_are_counted_through_the_epochs_and_lie_at_their_time(tmp_path):
    rows = [step(1), step(2, loss=2.0), step(1, epoch=2, start_s=0.5, loss=1.5)]
    read = read_back(write_tables(tmp_path / "run", rows), tmp_path / "logs")
    assert series(read, "steps/loss") == [(1, 2.5), (2, 2.0), (3, 1.5)]
    times_s = [event.wall_time - STARTED_UNIX_S for event in read.Scalars("steps/loss")]
    assert times_s == pytest.approx([0.01, 0.02, 0.5], abs=1e-6)
    phases = ["data", "transfer", "forward", "backward", "optimizer", "other"]
    shown = [series(read, f"steps/{phase}_s")[0][1] for phase in phases]
    assert shown == pytest.approx([0.002, 0, 0.003, 0.004, 0.0005, 0.0005])
    assert sum(shown) == pytest.approx(series(read, "steps/step_s")[0][1])


def test_accuracy_is_by_epoch_and_memory_by_milliseconds(tmp_path):
    epochs = [epoch_row(0, 0.5), epoch_row(1, 1.0, split="train", accuracy=0.25), epoch_row(1, 3.0)]
    telemetry = [
        {"time_s": 0.25, "rss_bytes": 2**30, "pss_bytes": 2**29},
        {"time_s": 0.75, "rss_bytes": 2**31},  # proportional sizes are read less often
    ]
    run = write_tables(tmp_path / "run", [step(1)], epochs, telemetry)
    read = read_back(run, tmp_path / "logs")
    assert series(read, "epochs/test_accuracy") == [(0, 0.5), (1, 0.5)]
    assert series(read, "epochs/train_accuracy") == [(1, 0.25)]
    assert series(read, "telemetry/rss_bytes") == [(250, 2.0**30), (750, 2.0**31)]
    assert series(read, "telemetry/pss_bytes") == [(250, 2.0**29)]
    assert "telemetry/power_w" not in read.Tags()["scalars"]


def test_a_step_without_detail_has_its_time_alone(tmp_path):
    bare = {f"{name}_s": None for name in ("data", "transfer", "forward", "backward")}
    rows = [step(1, **bare, optimizer_s=None, other_s=None, detail="off"), step(2)]
    read = read_back(write_tables(tmp_path / "run", rows), tmp_path / "logs")
    assert len(series(read, "steps/step_s")) == 2
    assert series(read, "steps/forward_s") == [(2, pytest.approx(0.003))]


@pytest.mark.parametrize(
    ("loss", "shown"), [("nan", math.nan), ("inf", math.inf), (1e300, math.inf)]
)
def test_a_loss_that_exploded_is_shown_as_what_it_became(tmp_path, loss, shown):
    read = read_back(write_tables(tmp_path / "run", [step(1, loss=loss)]), tmp_path / "logs")
    assert series(read, "steps/loss") == [(1, pytest.approx(shown, nan_ok=True))]


def test_rows_whose_time_is_unknown_or_none_are_left_out(tmp_path):
    telemetry = [{"time_s": None, "rss_bytes": 1}, {"time_s": "nan", "rss_bytes": 2}]
    epochs = [epoch_row(1, None), {**epoch_row(1, 2.0), "epoch": None}]
    run = write_tables(tmp_path / "run", [step(1), step(2, start_s=None)], epochs, telemetry)
    read = read_back(run, tmp_path / "logs")
    assert len(series(read, "steps/loss")) == 1
    assert {tag.partition("/")[0] for tag in read.Tags()["scalars"]} == {"steps"}

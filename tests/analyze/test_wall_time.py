"""The parts of a run's wall-clock time partition it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_tables import epoch_row, step, write_tables

from stepscope.analyze.wall_time import PARTS, time_by_part, wall_spans
from stepscope.records.run_reader import Run
from stepscope.records.types import WallSpan


def train_row(epoch: int, start_s: float, total_s: float) -> dict[str, Any]:
    loader = {"loader_start_s": 0.5, "loader_stop_s": 0.0}
    return epoch_row(epoch, start_s, split="train", total_s=total_s, **loader)


def recorded(
    path: Path, epochs: Sequence[dict[str, Any]], events: Sequence[Mapping[str, Any]] = ()
) -> Run:
    return write_tables(path, [step(1, data_s=0.25), step(2)], epochs, events=events)


def parts(spans: list[WallSpan]) -> list[tuple[str, float, float]]:
    return [(each["part"], each["start_s"], each["total_s"]) for each in spans]


def assert_partition(spans: list[WallSpan], wall_s: float) -> None:
    """Check that every span begins where the one before ended."""
    end_s = 0.0
    for each in spans:
        assert each["part"] in PARTS
        assert each["start_s"] == pytest.approx(end_s, abs=1e-9)
        assert each["total_s"] > 0
        end_s = each["start_s"] + each["total_s"]
    assert end_s == pytest.approx(wall_s)
    assert sum(each["total_s"] for each in spans) == pytest.approx(wall_s)


def test_a_traced_script_from_its_imports_to_its_end(tmp_path: Path) -> None:
    # The second epoch has an evaluation inside, which its own time leaves out.
    epochs = [train_row(1, 3, 4), epoch_row(1, 7.5, total_s=1), train_row(2, 9, 3)]
    epochs.append(epoch_row(2, 10, total_s=2))
    run = recorded(tmp_path, epochs, [{"time_s": 2.0, "event": "torch_ready"}])
    assert parts(wall_spans(run, 15.0)) == [
        ("imports", 0, 2),
        ("preparation", 2, 1),
        ("first batch", 3, 0.75),
        ("training", 3.75, 3.25),
        ("gaps", 7, 0.5),
        ("evaluation", 7.5, 1),
        ("gaps", 8.5, 0.5),
        ("training", 9, 1),
        ("evaluation", 10, 2),
        ("training", 12, 2),
        ("shutdown", 14, 1),
    ]


def test_a_built_in_run_has_its_checkpoints_in_place(tmp_path: Path) -> None:
    epochs = [epoch_row(0, 2, total_s=1), train_row(1, 4, 4)]
    events = [{"time_s": 8.75, "event": "checkpoint", "took_s": 0.5}]
    spans = wall_spans(recorded(tmp_path, epochs, events), 9.0)
    assert [part for part, _, _ in parts(spans)] == [
        *("preparation", "evaluation", "gaps", "first batch", "training"),
        *("gaps", "checkpoints", "shutdown"),
    ]
    assert ("checkpoints", 8.25, 0.5) in parts(spans)


def test_nothing_is_said_of_a_run_that_has_not_trained_or_not_ended(tmp_path: Path) -> None:
    assert wall_spans(recorded(tmp_path / "none", [epoch_row(0, 1.0)]), 5.0) == []
    assert wall_spans(recorded(tmp_path / "open", [train_row(1, 1, 2)]), None) == []


def test_checkpoints_without_a_place_come_out_of_gaps_and_training(tmp_path: Path) -> None:
    spans = wall_spans(recorded(tmp_path, [train_row(1, 1, 4), train_row(2, 6, 4)]), 11.0)
    totals = time_by_part(spans, 2.5)
    assert totals["checkpoints"] == pytest.approx(2.5)
    assert "gaps" not in totals
    assert sum(totals.values()) == pytest.approx(11.0)


times = st.floats(0.01, 5)
row_kinds = st.tuples(st.sampled_from(["train", "test", "checkpoint"]), times, st.floats(-0.5, 3))


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(row_kinds, max_size=12),
    ready_s=st.none() | st.floats(0, 5),
    wall_s=st.floats(1, 60),
)
def test_parts_partition_the_wall_time_whatever_the_clocks_say(
    kinds: list[tuple[str, float, float]], ready_s: float | None, wall_s: float
) -> None:
    at_s, epochs, events = 2.0, [train_row(1, 1.0, 1.0)], list[dict[str, Any]]()
    for number, (kind, total_s, gap_s) in enumerate(kinds, 2):
        start_s = max(0.0, at_s + gap_s)
        at_s = start_s + total_s
        if kind == "train":
            epochs.append(train_row(number, start_s, total_s))
        elif kind == "test":
            epochs.append(epoch_row(number, start_s, total_s=total_s))
        else:
            events.append({"time_s": at_s, "event": "checkpoint", "took_s": total_s})
    if ready_s is not None:
        events.append({"time_s": ready_s, "event": "torch_ready"})
    with tempfile.TemporaryDirectory() as folder:
        spans = wall_spans(recorded(Path(folder), epochs, events), wall_s)
    assert_partition(spans, wall_s)
    assert sum(time_by_part(spans, 1.5).values()) == pytest.approx(wall_s)

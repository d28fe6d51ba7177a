"""Trials on unlike machines are told apart, and never compared unless somebody asks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.analyze.comparison import compare
from stepscope.analyze.comparison_sides import by_node_kind, kinds_of, read_sides
from stepscope.analyze.sweep_summary import rows_of
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep, Trial, create_sweep, load_sweep

RATES = {"fast machine": 1000.0, "slow machine": 100.0}


def swept(folder: Path, kinds: list[str | None], **asked: Any) -> Sweep:
    """Record a sweep of two settings: workers=1 is twice as fast, and each round has its kind."""
    trials = [
        Trial(
            index=2 * number + workers,
            values={"workers": workers},
            repeat=number + 1,
            status=schema.COMPLETED if kind else schema.PENDING,
            metrics={"samples_per_s": RATES[kind] * (1 + workers)} if kind else {},
            node_kind=kind,
        )
        for number, kind in enumerate(kinds)
        for workers in (0, 1)
    ]
    settings = [{"workers": 0}, {"workers": 1}]
    made = create_sweep(folder, "nodes", {"kind": "sweep", "settings": settings, **asked}, trials)
    return load_sweep(made.path)


def test_a_setting_has_a_row_for_each_kind_of_node(tmp_path: Path) -> None:
    sweep = swept(tmp_path, ["fast machine", "slow machine"] * 3)
    assert kinds_of(sweep) == {"A": "fast machine", "B": "slow machine"}
    found = {
        tuple(row["values"].values()): row["samples_per_s"]["median"] for row in rows_of(sweep)
    }
    assert found == {(0, "A"): 1000, (1, "A"): 2000, (0, "B"): 100, (1, "B"): 200}


def test_settings_are_compared_within_a_kind_and_not_across(tmp_path: Path) -> None:
    sweep = swept(tmp_path, ["fast machine", "slow machine"] * 3)
    within, other_setting, other_kind = (
        f"{sweep.path}:workers={workers},node={node}"
        for workers, node in ((0, "A"), (1, "A"), (1, "B"))
    )
    alike, unlike = compare(read_sides([within, other_setting, other_kind])).others
    assert alike.ratio is not None
    assert abs(alike.ratio.ratio - 2) < 0.01
    assert unlike.ratio is None
    assert any("another kind of node" in warning for warning in unlike.warnings)


def test_nodes_that_are_alike_or_were_to_be_mixed_are_not_told_apart(tmp_path: Path) -> None:
    alike = swept(tmp_path / "alike", ["fast machine"] * 3)
    mixed = swept(tmp_path / "mixed", ["fast machine", "slow machine"], on={"mix_nodes": True})
    for sweep in (alike, mixed):
        assert by_node_kind(sweep) == sweep
        assert [row["values"] for row in rows_of(sweep)] == [{"workers": 0}, {"workers": 1}]


def test_trials_of_a_machine_without_a_kind_are_not_pooled_with_those_of_a_node(
    tmp_path: Path,
) -> None:
    sweep = swept(tmp_path, ["fast machine", None])
    for trial in sweep.info["trials"][2:]:  # made where the sweep was begun
        trial.update(status=schema.COMPLETED, metrics={"samples_per_s": 10.0})
    assert kinds_of(sweep) == {"A": "fast machine", "B": "the machine that the sweep was begun on"}
    rates = {
        tuple(row["values"].values()): row["samples_per_s"]["median"] for row in rows_of(sweep)
    }
    assert rates == {(0, "A"): 1000, (1, "A"): 2000, (0, "B"): 10, (1, "B"): 10}


def test_trials_that_no_node_has_made_yet_stand_apart(tmp_path: Path) -> None:
    sweep = by_node_kind(swept(tmp_path, ["fast machine", "slow machine", None]))
    assert [trial.values["node"] for trial in sweep.trials[-2:]] == ["none yet"] * 2
    assert asdict(sweep.trials[0])["node_kind"] == "fast machine"

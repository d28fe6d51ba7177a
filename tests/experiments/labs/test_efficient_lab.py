"""The lab of efficient networks: what its networks cost, its rules, and when it gives points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quiet_lab import run_quietly

from stepscope.accelerator.rubric import MOST_EPOCHS
from stepscope.experiments.labs.lab_plan import Setting, read_sheet
from stepscope.experiments.labs.lab_trials import SettingTrials
from stepscope.experiments.labs.procedures import efficient_lab
from stepscope.experiments.labs.procedures.efficient_lab import beats_published, describe, row_of
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Trial, load_sweep
from stepscope.settings.load_settings import with_changes

SHEET = read_sheet("efficient-inference")
FIGURES = {"energy_mj": 0.1, "cycles": 40_000, "peak_activation_bytes": 61_440}


def tried(*accuracies: float) -> list[SettingTrials]:
    found = []
    for seed, accuracy in enumerate(accuracies):
        values = {"model": "efficient-small", "schedule": "one-cycle", "seed": seed}
        metrics = {"test_accuracy": accuracy, "wall_s": 60.0 + seed}
        trial = Trial(seed, values, 1, "completed", metrics=metrics)
        found.append(SettingTrials(Setting(values), (trial,), (Path(str(seed)),)))
    return found


def row(*accuracies: float, by_the_rules: bool = True, **figures: float) -> dict[str, Any]:
    return row_of(tried(*accuracies), {**FIGURES, **figures}, by_the_rules=by_the_rules)


def test_a_row_has_the_mean_of_its_seeds_and_the_points_of_the_least_accurate():
    made = row(0.81, 0.85, 0.83)
    assert made["test_accuracy"] == pytest.approx(0.83)
    assert (made["test_accuracy_low"], made["test_accuracy_high"]) == (0.81, 0.85)
    assert (made["seeds"], made["wall_s"], made["points"]) == ("0, 1, 2", 62.0, 100)
    assert row(0.79, 0.85)["points"] == 90


def test_only_a_network_that_is_nowhere_worse_beats_the_published_one():
    assert beats_published(row(0.80))
    assert not beats_published(row(0.80, 0.79))  # one seed is less accurate
    assert not beats_published(row(0.80, cycles=46_345))
    assert not beats_published(row(0.80, energy_mj=0.33))
    assert "than published" in describe(row(0.80))
    assert "than published" not in describe(row(0.80, by_the_rules=False))


def test_the_networks_keep_the_limits_that_they_were_made_for():
    accurate = efficient_lab.estimate_of("efficient-accurate")
    assert accurate["energy_mj"] < 0.5
    assert accurate["cycles"] < 100_000
    assert accurate["peak_activation_bytes"] < 10**6
    small = efficient_lab.estimate_of("efficient-small")
    assert small["energy_mj"] <= 0.322
    assert small["cycles"] <= 46_344
    assert small["peak_activation_bytes"] <= 98_304
    unsure = [each for each in small["layers"] if each["name"] in small["not_validated"]]
    assert sum(each["cycles"] for each in unsure) < 1e-3 * small["cycles"]  # gates only


def test_the_sheet_keeps_the_rules():
    for setting in SHEET.settings:
        spec = with_changes({**SHEET.run, "epochs": SHEET.epochs}, setting.values)
        assert (spec.optimizer, spec.augment, spec.weights) == ("sgd", "none", None)
        assert (spec.test_at, spec.validation) == ("end", 0)
        assert spec.epochs < MOST_EPOCHS
    seeds = [each.values["seed"] for each in SHEET.settings if "lr" not in each.values]
    assert sorted(seeds) == [0, 0, 1, 1, 2, 2]


def test_a_short_lab_on_other_data_trains_each_network_and_gives_no_points(tmp_path: Path):
    flags = {"data": "shapes", "samples": "128", "epochs": "1", "seed": "0", "lr": "0.05"}
    flags |= {"schedule": "one-cycle", "threads": "1", "out": str(tmp_path)}
    finding = run_quietly(SHEET, flags)
    assert finding["holds"]
    rows = finding["rows"]
    assert [each["model"] for each in rows] == ["efficient-accurate", "efficient-small"]
    assert all(each["test_accuracy"] is not None and each["points"] is None for each in rows)
    assert "No points" in finding["answer"]
    [trials] = Path(finding["path"]).glob("*-trials")
    sweep = load_sweep(trials)
    run = load_run(sweep.folder_of(sweep.trials[0]))
    assert [each["epoch"] for each in run.epochs.rows() if each["split"] == "test"] == [1]
    assert run.info.get("choice") is None  # who changes the sheet makes a choice of their own

"""Labs with a sheet: the sheets, the plans made of them and of flags, the conclusions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from machine_trees import JETSON_XAVIER_NX, RASPBERRY_PI, VIRTUAL_MACHINE, write_tree
from quiet_lab import run_quietly

from stepscope.errors import RequestError
from stepscope.experiments.labs import lab_answers, lab_runner
from stepscope.experiments.labs.lab_answers import best_by_figure, one_worker_and_more
from stepscope.experiments.labs.lab_plan import (
    LabRequest,
    Setting,
    make_plan,
    read_sheet,
    sheet_names,
)
from stepscope.experiments.labs.lab_trials import (
    SettingTrials,
    SheetTrials,
    compare,
    describe_ratio,
    not_fixed,
)
from stepscope.records.sweep_folder import Trial
from stepscope.report.charts.chart import Chart
from stepscope.report.terminal.lab_tables import charts_of
from stepscope.report.terminal.workers_table import workers_chart
from stepscope.settings.load_settings import with_changes

TINY = {"model": "lenet", "samples": "96", "batch_size": "32", "threads": "1", "device": "cpu"}

ASKED_FOR = {
    "epoch-times", "workers", "one-vs-best", "devices", "optimizers", "batch-norm", "model",
    "batch-sizes", "architectures", "edge-protocol", "storage", "imagenet",
    "mobilebert", "efficient-inference", "scaling",
}  # fmt: skip


def plan_of(name, *, scale=1.0, repeats=None, **flags):
    return make_plan(read_sheet(name), LabRequest(flags, scale, repeats))


# --- sheets ---------------------------------------------------------------------------------------


def test_every_experiment_has_a_sheet():
    assert {*sheet_names()} == ASKED_FOR
    assert {*lab_runner.labs()} == ASKED_FOR | {"memory", "second-epoch"}


@pytest.mark.parametrize("name", sorted(ASKED_FOR))
def test_every_sheet_has_settings_that_are_valid_and_an_answer(name):
    sheet = read_sheet(name)
    for setting in sheet.settings:
        with_changes(sheet.run, setting.values)
    assert callable(lab_runner.procedure_of(sheet))
    assert hasattr(lab_answers, sheet.answer) == (sheet.procedure == "sweep")
    assert sheet.question.endswith("?")
    assert sheet.columns
    assert sheet.plots


def test_the_edge_protocol_is_the_published_one():
    spec = with_changes(read_sheet("edge-protocol").run, {})
    assert (spec.model, spec.workers, spec.prefetch) == ("vgg11_imagenet", 4, 2)
    assert (spec.batch_size, spec.lr, spec.momentum) == (16, 0.01, 0.9)
    assert (spec.page_cache, spec.source, spec.augment) == ("cold", "local", "crop-flip")
    assert read_sheet("edge-protocol").epochs == 6


# --- plans ----------------------------------------------------------------------------------------


@given(scale=st.floats(1e-6, 1))
def test_a_share_leaves_two_epochs_and_four_batches_and_never_takes_more_than_all(scale):
    plan = plan_of("batch-sizes", scale=scale, data="shapes")
    assert 2 <= plan.spec.epochs <= 10
    assert plan.spec.samples is None or 4 * 1024 <= plan.spec.samples <= 50_000
    whole = plan.spec.samples in (None, 50_000) and plan.spec.epochs == 10
    assert (plan.note is None) == whole


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        # The floors bind: two epochs of five, four batches of 128.
        ({"scale": 0.001}, "512 of 50,000 samples, 2 of 5 epochs"),
        ({"scale": 0.02}, "1,000 of 50,000 samples, 2 of 5 epochs"),
        ({"scale": 0.02, "samples": "320"}, "320 of 50,000 samples, 2 of 5 epochs"),
        ({"samples": "320"}, "320 of 50,000 samples"),
        ({"epochs": "1"}, "1 of 5 epochs"),
        ({"epochs": "9"}, None),
        ({}, None),
    ],
)
def test_what_is_less_than_the_sheet_asks_for_is_noted_in_numbers(asked, note):
    found = plan_of("epoch-times", data="shapes", **asked).note
    assert found == (None if note is None else f"a short run: {note}")


@pytest.mark.parametrize(
    ("lab", "flags", "message"),
    [
        *(("epoch-times", {"scale": scale}, "scale") for scale in (0, -1, 1.01, float("nan"))),
        ("epoch-times", {"batch_size": "many"}, "batch_size"),
        ("epoch-times", {"model": "lenett"}, "lenett"),
        ("epoch-times", {"samples": "16"}, "samples"),
        ("epoch-times", {"repeats": 0}, "repeats: wanted 1 or more, found 0"),
        ("model", {"repeats": 3}, "repeats"),
        ("one-vs-best", {"workers": "3"}, "nothing to compare"),
    ],
)
def test_a_wrong_request_is_refused_when_the_plan_is_made(lab, flags, message):
    with pytest.raises(RequestError, match=message):
        plan_of(lab, **flags)


EFFICIENT = {"model": "efficient-small", "schedule": "one-cycle", "seed": 2}


@pytest.mark.parametrize(
    ("lab", "flags", "settings", "picked", "changed"),
    [
        # A flag overrides the sheet and the share; a value that the sheet has is no change.
        (
            "epoch-times",
            {"scale": 0.1, "model": "lenet", "samples": "320", "batch_size": "128"},
            1,
            {},
            {"model": "lenet", "samples": 320},
        ),
        # A flag for what is varied makes equal settings one.
        ("optimizers", {"lr": "0.05"}, 5, {}, {"lr": 0.05}),
        # A value that the sheet has selects its settings; here a single one has an answer too.
        ("efficient-inference", {"model": "efficient-small"}, 4, {"model": "efficient-small"}, {}),
        ("efficient-inference", {**EFFICIENT, "seed": "2"}, 1, EFFICIENT, {}),
        # A value that only some settings have is for all.
        ("efficient-inference", {"lr": "0.01"}, 8, {}, {"lr": 0.01}),
    ],
)
def test_flags_override_or_select_settings_of_the_sheet(lab, flags, settings, picked, changed):
    plan = plan_of(lab, data="cifar10", **flags)
    assert len(plan.settings) == settings
    assert (plan.picked, plan.changed) == (picked, changed)
    for setting in plan.settings:
        assert picked.items() <= setting.values.items()


def test_missing_data_is_replaced_and_listed_unless_the_user_named_it(tmp_path: Path):
    plan = plan_of("epoch-times", data_dir=str(tmp_path))
    assert plan.spec.data == "shapes"
    assert plan.missing[0]["name"] == "cifar10"
    assert "used shapes instead" in plan.missing[0]["reason"]
    named = plan_of("epoch-times", data_dir=str(tmp_path), data="shapes")
    assert named.missing == ()


# --- what trials come to --------------------------------------------------------------------------


def tried_with(*rates: float, **values: object) -> SettingTrials:
    trials = [
        Trial(number, dict(values), number, "completed", metrics={"samples_per_s": rate})
        for number, rate in enumerate(rates, start=1)
    ]
    return SettingTrials(Setting(values), tuple(trials), tuple(Path() for _ in trials))


def test_rounds_that_only_one_side_completed_are_left_out_and_one_round_has_no_verdict():
    short = tried_with(200, 210)
    gone = replace(short.trials[0], status="failed", metrics={})
    other = SettingTrials(short.setting, (gone, short.trials[1]), short.folders)
    (found,) = compare(tried_with(100, 105), [other])
    assert (found.ratio.rounds, found.ratio.ratio) == (1, pytest.approx(2))
    assert "cannot tell" in describe_ratio(found, "one")
    (none,) = compare(tried_with(100), [replace(other, trials=(gone,))])
    assert "no round" in describe_ratio(none, "one")


def test_trials_of_one_epoch_are_compared_without_their_start():
    steady = {"dropped_epochs": [], "steady_samples_per_s": 150.0, "steady_steps": 20}
    whole = tried_with(100, 100)
    trials = tuple(
        replace(trial, metrics={**trial.metrics, **steady, "steady_samples_per_s": rate})
        for trial, rate in zip(whole.trials, (150.0, 152.0), strict=True)
    )
    short = replace(whole, trials=trials)
    assert short.row("samples_per_s")["samples_per_s"] == short.median_of("samples_per_s") == 151
    assert compare(whole, [short])[0].ratio.ratio == pytest.approx(1.51, rel=0.001)


def test_a_row_has_an_interval_from_two_rounds_on_and_the_reason_of_a_trial_that_died():
    assert "samples_per_s_low" not in tried_with(100).row("samples_per_s")
    row = tried_with(100, 101, 102).row("samples_per_s")
    assert row["samples_per_s_low"] <= row["samples_per_s"] == 101 <= row["samples_per_s_high"]
    tried = tried_with(100, batch_size=1024)
    died = replace(tried.trials[0], status="out_of_memory", reason="too large", metrics={})
    row = replace(tried, trials=(died,)).row("step_s")
    assert row == {"batch_size": 1024, "status": "out_of_memory: too large", "step_s": None}


def conclude(*tried: SettingTrials):
    return one_worker_and_more(
        SheetTrials(plan_of("one-vs-best", data="shapes"), list(tried), []), []
    )


def test_more_workers_are_called_better_only_where_the_rounds_show_it():
    two = tried_with(150, 151, 152, workers=2)
    clear = conclude(tried_with(100, 101, 102, workers=1), two)
    assert "1.50 times as fast as one" in clear.answer
    assert clear.answer.startswith("Use 2 workers")
    assert clear.chosen is two
    noise = conclude(tried_with(100, 160, 90, workers=1), tried_with(150, 100, 130, workers=2))
    assert noise.answer.startswith("Keep one worker")
    assert noise.chosen is None
    once = conclude(tried_with(100, workers=1), tried_with(150, workers=2))
    assert "cannot tell" in once.answer


def networks(**rates: Sequence[float]) -> SheetTrials:
    plan = plan_of("architectures", data="shapes")
    settings = []
    for model, found in rates.items():
        tried = tried_with(*found, model=model)
        for trial in tried.trials:
            trial.metrics["test_accuracy"] = trial.metrics["samples_per_s"] / 1000
        settings.append(tried)
    return SheetTrials(plan, settings, [])


def test_networks_that_are_not_told_apart_have_no_winner():
    clear = best_by_figure(networks(a=[300, 301, 302], b=[200, 201, 202]), []).answer
    assert "a is the most accurate (30.1 % on the test set); a is the fastest (301" in clear
    tied = best_by_figure(
        networks(a=[300, 310, 290], b=[305, 290, 296], c=[100, 101, 99]), []
    ).answer
    assert "a (300 samples/s) is not shown to be faster than b" in tied
    assert "fastest" not in tied
    once = best_by_figure(networks(a=[300], b=[200], c=[1], d=[2], e=[3]), []).answer
    assert "a (300 samples/s) is not shown to be faster than 4 others" in once
    assert "accuracies vary with the seed" in once


@pytest.mark.parametrize(
    "tried",
    [[], [tried_with(100, workers=2), tried_with(100, workers=4)], [tried_with(100, workers=1)]],
)
def test_without_one_worker_or_another_number_there_is_no_answer(tried):
    conclusion = conclude(*tried)
    assert not conclusion.holds
    assert conclusion.answer.startswith("No answer")


def test_the_graph_of_the_workers_lab_is_the_one_of_stepscope_workers():
    candidates = [
        {"workers": number, "threads": None, "samples_per_s": {"median": rate}}
        for number, rate in ((0, 100.0), (2, 200.0), (4, None))
    ]
    for each in candidates:
        each["samples_per_s"] |= {"low": None, "high": None}
    found = {"candidates": candidates, "recommended": 2, "recommended_threads": None}
    finding = {"subject": "lenet on shapes", "rows": [], "workers": found}
    (chart,) = charts_of(finding, read_sheet("workers").plots).values()
    assert chart == replace(workers_chart(found), subtitle="lenet on shapes")
    assert charts_of({"subject": "", "rows": []}, read_sheet("workers").plots) == {}


# --- what a machine lacks of the protocol for boards ----------------------------------------------


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


# --- for real -------------------------------------------------------------------------------------


def test_lab_model_counts_twenty_convolutions(tmp_path: Path):
    found = run_quietly(read_sheet("model"), {"out": str(tmp_path)}, scale=0.1)
    assert found["holds"]
    assert "20 convolutions" in found["answer"]
    assert found["note"] is None, "no data is used, whatever share of it is asked for"
    counted = {row["what"]: row["norm_batch"] for row in found["rows"]}
    assert counted["convolutions"] == 20
    assert counted["trainable parameters"] == counted["gradients"] == 11_173_962
    assert counted["output of the last convolution"] == "512x4x4"
    assert counted["input of the last layer"] == "512"
    assert (counted["forward and backward, MB"], counted["total, MB"]) == (11.25, 53.89)


def test_a_device_that_is_missing_is_listed_and_the_rest_runs(tmp_path: Path):
    flags = {**TINY, "out": str(tmp_path), "workers": "0"}
    del flags["device"]
    found = run_quietly(read_sheet("devices"), flags, scale=0.01, repeats=1)
    assert found["holds"]
    here = {row["device"] for row in found["rows"]}
    missing = {each["name"].removeprefix("device ") for each in found["missing"]}
    assert "cpu" in here
    assert here | missing >= {"cpu", "cuda", "mps"}
    assert not here & missing


OF_A_DEVICE = sorted(ASKED_FOR - {"model", "devices", "imagenet", "mobilebert"})


@pytest.mark.parametrize(
    "name",
    [
        each if each in ("one-vs-best", "workers") else pytest.param(each, marks=pytest.mark.long)
        for each in OF_A_DEVICE
    ],
)
def test_a_lab_of_which_this_machine_can_do_nothing_says_so(name, tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    sheet = read_sheet(name)
    compared = 2 if name == "scaling" else 1
    few = replace(sheet, settings=sheet.settings[:compared], repeats=min(sheet.repeats, 1))
    flags = {**TINY, "device": "cuda", "out": str(tmp_path)}
    if name == "scaling":
        flags["samples"] = "1280"
    for varied in sheet.settings[0].values:
        flags.pop(varied, None)
    found = run_quietly(few, flags)
    assert not found["holds"]
    assert found["answer"].startswith("No answer")
    assert charts_of(found, sheet.plots) == {}


def test_a_lab_of_one_epoch_tells_which_rates_are_not_alike(tmp_path: Path):
    # Of twelve steps the buffers of four workers leave two: too few for a rate without the start.
    sheet = read_sheet("one-vs-best")
    few = replace(sheet, settings=(Setting({"workers": 0}), Setting({"workers": 4})))
    flags = {**TINY, "samples": "384", "epochs": "1", "out": str(tmp_path)}
    found = run_quietly(few, flags, repeats=1)
    (entry,) = [each for each in found["missing"] if "throughput" in each["name"]]
    assert "all epochs in some runs, from steps after the start in others" in entry["reason"]
    (sweep,) = tmp_path.glob("2*/2*/sweep.json")
    assert json.loads(sweep.read_text())["kind"] == "lab"


def test_every_optimiser_has_losses_of_its_own(tmp_path: Path):
    sheet = read_sheet("optimizers")
    few = replace(sheet, settings=sheet.settings[:2])  # SGD, and SGD with Nesterov
    found = run_quietly(few, {**TINY, "out": str(tmp_path)}, scale=0.02)
    plain, nesterov = found["rows"]
    assert plain["losses"] != nesterov["losses"]
    assert len(plain["losses"]) == len(plain["accuracies"]) == 2
    charts = charts_of(found, few.plots)
    assert {chart.kind for chart in charts.values()} == {"lines"}
    assert all(isinstance(chart, Chart) and len(chart.marks) == 4 for chart in charts.values())

"""The charts of a run and of several: what has data is drawn, and what has none says why."""

import shutil

import pytest
from complete_run import write_sweep_of_runs, write_whole_run
from written_runs import write_run

from stepscope.analyze.comparison_sides import group_runs, groups_of
from stepscope.analyze.sweep_summary import rows_of
from stepscope.records.run_folder import create_at
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import load_sweep
from stepscope.report.charts.run_charts import sections_of
from stepscope.report.charts.sweep_charts import sections_of_groups, sweep_chart


@pytest.fixture
def run(tmp_path):
    return load_run(write_whole_run(tmp_path / "run"))


def charts_of(sections):
    return {chart.title: chart for section in sections for chart in section.charts}


def test_a_whole_run_has_every_chart(run):
    assert list(charts_of(sections_of(run))) == [
        "Where the time of a step goes",
        "Phases by step",
        "Time of every step",
        "Time of every epoch",
        "Accuracy by time",
        "Accuracy by epoch",
        "Loss by epoch",
        "Loss by step",
        "Time by layer",
        "Memory over time",
        "Memory bill",
        "CPU",
        "Reading",
        "Pressure: time that tasks waited",
        "Power",
    ]


def test_the_parts_of_a_step_add_up_to_it(run):
    charts = charts_of(sections_of(run))
    bar = charts["Where the time of a step goes"]
    assert sum(mark.y for mark in bar.marks) == pytest.approx(10.0)  # ms
    by_step = charts["Phases by step"].marks
    assert sum(mark.y for mark in by_step if mark.x == 1) == pytest.approx(10.0)


def test_accuracy_is_placed_when_it_was_known(run):
    by_time = charts_of(sections_of(run))["Accuracy by time"]
    assert [(m.x, m.y) for m in by_time.marks if m.series == "test"] == [(1.2, 30.0), (2.2, 60.0)]


def test_a_rate_is_the_growth_of_its_count(run):
    cpu = charts_of(sections_of(run))["CPU"]
    training = [mark.y for mark in cpu.marks if mark.series == "training process"]
    assert training == pytest.approx([90.0] * 29)


def test_the_bill_ends_at_the_peak_and_its_limit_is_drawn_when_near(run):
    charts = charts_of(sections_of(run))
    *parts, peak = charts["Memory bill"].marks
    assert (peak.x, peak.y, peak.chosen) == ("peak", 400.0, True)
    assert [mark.x for mark in parts] == ["runtime", "activations", "unexplained"]
    assert parts[0].y == 310.0, "measured wins over forecast"
    assert charts["Memory over time"].limit == ("limit", 512.0)


def test_a_run_without_a_step_has_no_charts_and_gives_reasons(tmp_path):
    create_at(tmp_path / "run", "empty", "run", {})
    sections = sections_of(load_run(tmp_path / "run"))
    assert charts_of(sections) == {}
    assert ["No layers: the run has not ended."] in [list(each.notes) for each in sections]


def test_a_run_that_was_killed_shows_what_its_steps_add_up_to(tmp_path):
    path = write_whole_run(tmp_path / "run")
    killed = create_at(tmp_path / "killed", "killed", "run", {})
    for name in ("steps.csv", "epochs.csv"):
        shutil.copy(path / name, killed.path / name)
    charts = charts_of(sections_of(load_run(killed.path)))
    assert sum(m.y for m in charts["Where the time of a step goes"].marks) == pytest.approx(10.0)


def test_one_epoch_is_no_course_of_a_training(run):
    lines = (run.path / "epochs.csv").read_text().splitlines()
    (run.path / "epochs.csv").write_text("".join(f"{line}\n" for line in lines[:2]))
    titles = charts_of(sections_of(load_run(run.path)))
    assert "Time of every epoch" in titles
    assert not {"Loss by epoch", "Accuracy by time"} & set(titles)


# --- several


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        (
            [{"seed": seed, "batch_size": size} for seed, size in ((1, 8), (2, 8), (3, 16))],
            [("batch_size=8", 2), ("batch_size=16", 1)],
        ),
        ([{"name": "before"}, {"name": "after"}], [("before", 1), ("after", 1)]),
    ],
)
def test_runs_that_differ_by_chance_alone_are_one_group(tmp_path, specs, named):
    runs = [
        load_run(write_whole_run(tmp_path / str(at), spec=spec)) for at, spec in enumerate(specs)
    ]
    assert [(group.name, len(group.runs)) for group in group_runs(runs)] == named


def test_a_sweep_over_batch_sizes_shows_the_time_of_a_mini_batch(tmp_path):
    sweep = load_sweep(write_sweep_of_runs(tmp_path, b8=(1.0, 1.1), b32=(1.0, 1.1)))
    charts = charts_of(sections_of_groups(groups_of(sweep), sweep_chart(rows_of(sweep))))
    by_size = charts["Time of a mini-batch by batch size"]
    assert by_size.series() == ["step", "forward", "backward"]
    whole = {mark.x: mark.y for mark in by_size.marks if mark.series == "step"}
    assert whole == pytest.approx({8: 2.625, 32: 10.5})
    assert len(charts["Time of every epoch"].panels()) == 2


def test_the_graph_of_a_sweep_marks_the_setting_to_use_and_has_intervals(tmp_path):
    sweep = load_sweep(write_sweep_of_runs(tmp_path, b8=(2.0, 2.01, 2.02), b32=(1.0, 1.01, 1.02)))
    chart = sweep_chart(rows_of(sweep), "batch_size=32")
    assert [(mark.x, mark.chosen) for mark in chart.marks] == [(8, False), (32, True)]
    assert all(mark.low < mark.y < mark.high for mark in chart.marks)


def test_two_axes_are_one_on_x_and_one_as_series():
    rate = {"median": 5.0, "low": None, "high": None}
    rows = [
        {"values": {"workers": workers, "pin_memory": pin}, "samples_per_s": rate}
        for workers in (0, 2)
        for pin in (False, True)
    ]
    chart = sweep_chart(rows)
    assert (chart.x, chart.series()) == ("workers", ["pin_memory=false", "pin_memory=true"])


def test_runs_without_phases_or_telemetry_are_compared_by_what_they_have(tmp_path):
    none = {"phases": None}
    runs = [
        load_run(write_run(tmp_path / name, 50.0, spec={"lr": name}, summary=none)) for name in "ab"
    ]
    titles = list(charts_of(sections_of_groups(group_runs(runs))))
    assert titles == ["Throughput", "Peak memory"]

"""The charts of several runs side by side, and of a sweep: medians, and first runs' curves."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.analyze.comparison_sides import Group, as_text, name_of
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import SweepRow
from stepscope.report.charts.chart import Chart, ChartMark, Kind, with_interval
from stepscope.report.charts.run_charts import epoch_marks, learning_charts, memory_by_time
from stepscope.report.html.page_content import Section
from stepscope.stats.intervals import Interval, known_mean

_MOST_TOGETHER = 8  # the number of distinct colours
_MOST_PANELS = 6
_MIB = 2**20


def sections_of_groups(groups: Sequence[Group], throughput: Chart | None = None) -> list[Section]:
    """Return all charts that the groups have data for; a sweep passes its own first one."""
    together = [(group.name, group.runs[0]) for group in groups[:_MOST_TOGETHER]]
    shown = f"The first run of each; {_MOST_TOGETHER} of {len(groups)} are shown."
    notes = [shown] if len(groups) > _MOST_TOGETHER else []
    rates = [group.throughput() for group in groups]
    throughput = throughput or _group_bars("Throughput", "samples/s", groups, rates)
    peaks = [
        group.interval(run.summary.get("peak_memory_bytes") for run in group.runs)
        for group in groups
    ]
    peak_memory = _group_bars("Peak memory", "memory, MiB", groups, peaks, 1 / _MIB)
    sections = [
        Section("Throughput", [throughput]),
        Section("Time of a step", [phase_bars(groups), by_batch_size(groups)]),
        Section("Epochs", [epochs_side_by_side(groups)]),
        Section("Learning", learning_charts(together), notes),
        Section("Memory", [memory_by_time(together), peak_memory], notes),
    ]
    return [drawn for section in sections if (drawn := section.with_data()).charts]


def _group_bars(
    title: str, y: str, groups: Sequence[Group], found: Sequence[Interval | None], times: float = 1
) -> Chart:
    """Return the chart of a figure, a bar for each group."""
    marks = [
        with_interval(group.name, each, times=times)
        for group, each in zip(groups, found, strict=True)
        if each is not None
    ]
    return _compared(title, "bars", "", y, marks)


def phase_bars(groups: Sequence[Group]) -> Chart:
    """Return the chart of a step of each group as a bar of its phases."""
    marks = [
        ChartMark(group.name, mean_s * 1e3, phase)
        for group in groups
        for phase in schema.PHASES
        if (mean_s := known_mean([_phase_s(run, phase) for run in group.runs])) is not None
    ]
    return Chart("Where the time of a step goes", "rows", "", "mean time of a step, ms", marks)


def by_batch_size(groups: Sequence[Group]) -> Chart:
    """Return the chart of step, forward and backward time by batch size, if only that varies."""
    parts = {"step": schema.PHASES, "forward": ("forward",), "backward": ("backward",)}
    sizes = [group.runs[0].spec.get("batch_size") for group in groups]
    alone = all(set(group.values) <= {"batch_size"} for group in groups)
    marks = []
    for part, phases in parts.items():
        for size, group in zip(sizes, groups, strict=True):
            took = group.interval(_phase_s(run, *phases) for run in group.runs)
            if alone and isinstance(size, int) and took is not None:
                marks.append(with_interval(size, took, part, 1e3))
    varies = len({mark.x for mark in marks}) > 1
    title = "Time of a mini-batch by batch size"
    return _compared(title, "points", "batch size", "time, ms", marks if varies else [])


def epochs_side_by_side(groups: Sequence[Group]) -> Chart:
    """Return the epochs of each group's first run, a panel for each."""
    marks = [
        mark for group in groups[:_MOST_PANELS] for mark in epoch_marks(group.runs[0], group.name)
    ]
    more = f"{_MOST_PANELS} of {len(groups)}" if len(groups) > _MOST_PANELS else ""
    return Chart("Time of every epoch", "stacked", "epoch", "time, s", marks, more)


def _compared(title: str, kind: Kind, x: str, y: str, marks: Sequence[ChartMark]) -> Chart:
    """Return a chart of medians with their intervals, and a note on the intervals."""
    repeated = any(mark.low is not None for mark in marks)
    about = "median of the runs, 95 % interval" if repeated else "too few runs for an interval"
    return Chart(title, kind, x, y, marks, about)


def _phase_s(run: Run, *names: str) -> float | None:
    phases = run.summary.get("phases")
    return sum(phases[name]["mean_s"] for name in names) if phases else None


# --- Throughput of a sweep


def sweep_chart(rows: Sequence[SweepRow], chosen: str | None = None) -> Chart:
    """Return the chart of throughput: the first axis on x, the others as series.

    `chosen` is the name of the setting to use, if one is shown to be faster than the first.
    """
    axes = list(rows[0]["values"]) if rows else []
    x = axes[0] if axes else "setting"
    marks = []
    for row in rows:
        values, rate = row["values"], row["samples_per_s"]
        place = values.get(x)
        if isinstance(place, bool) or not isinstance(place, int | float):
            place = as_text(place)
        if rate["median"] is not None:
            series = name_of({axis: values.get(axis) for axis in axes[1:]})
            ends = (rate["low"], rate["high"])
            mark = name_of(values) == chosen
            marks.append(ChartMark(place, rate["median"], series, "", *ends, chosen=mark))
    title = f"Throughput by {' and '.join(axes) or 'setting'}".replace("_", " ")
    return Chart(title, "points", x.replace("_", " "), "samples/s", marks)

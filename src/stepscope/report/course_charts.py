"""How steps went, from the first to the last: reduced, with their extremes."""

from __future__ import annotations

from stepscope.analyze.thinning import MOST_BUCKETS, thin
from stepscope.records import schema
from stepscope.records.reader import Run
from stepscope.report.charts import Chart, Mark

_MS = 1e3


def phases_by_step(run: Run) -> Chart:
    """Show the phases of the steps on top of each other."""
    places = range(1, len(run.steps) + 1)
    marks = [
        Mark(bucket.at, bucket.mean * _MS, phase)
        for phase in schema.PHASES
        for bucket in thin(places, run.steps[f"{phase}_s"])
    ]
    return Chart("Phases by step", "areas", "step", "time, ms", marks, reduced_note(run, "means"))


def by_step(
    run: Run,
    column: str = "step_s",
    title: str = "Time of every step",
    y: str = "time, ms",
    times: float = _MS,
) -> Chart:
    """Show a figure of the steps: a line of means in the band of least and most."""
    buckets = thin(range(1, len(run.steps) + 1), run.steps[column])
    marks = [
        Mark(each.at, each.mean * times, low=each.least * times, high=each.most * times)
        for each in buckets
    ]
    note = reduced_note(run, "the line is the mean, the band from the least to the most")
    return Chart(title, "bands", "step", y, marks, note, from_zero=column != "loss")


def reduced_note(run: Run, how: str) -> str:
    """Say how many steps stand behind a point, where it is more than one."""
    steps = len(run.steps)
    if steps <= MOST_BUCKETS:
        return ""
    return f"{steps:,} steps, about {steps // MOST_BUCKETS:,} a point: {how}"

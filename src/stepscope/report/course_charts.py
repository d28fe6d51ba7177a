"""How steps went, from the first to the last: reduced, with their extremes."""

from __future__ import annotations

from dataclasses import replace

from stepscope.analyze.thinning import MOST_BUCKETS, thin
from stepscope.analyze.throttling import touched_ranges
from stepscope.records import schema
from stepscope.records.reader import Run
from stepscope.report.charts import Chart, Mark

_MS = 1e3
_SHADE = "throttled"
_ABOUT_SHADE = "shaded: the machine held itself back (throttling)"


def phases_by_step(run: Run) -> Chart:
    """Show the phases of the steps on top of each other."""
    places = range(1, len(run.steps) + 1)
    marks = [
        Mark(bucket.at, bucket.mean * _MS, phase)
        for phase in schema.PHASES
        for bucket in thin(places, run.steps[f"{phase}_s"])
    ]
    chart = Chart("Phases by step", "areas", "step", "time, ms", marks, reduced_note(run, "means"))
    return _with_throttling(run, chart)


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
    chart = Chart(title, "bands", "step", y, marks, note, from_zero=column != "loss")
    return chart if column == "loss" else _with_throttling(run, chart)


def _with_throttling(run: Run, chart: Chart) -> Chart:
    """Shade the steps that were throttled, if any were, and say so below the title."""
    stretches = _stretches(run)
    if not stretches:
        return chart
    subtitle = "; ".join(filter(None, (chart.subtitle, _ABOUT_SHADE)))
    return replace(chart, subtitle=subtitle, shaded=(_SHADE, stretches))


def _stretches(run: Run) -> list[tuple[float, float]]:
    """Give from which edge of a step to which; what lies within a point's width becomes one."""
    steps = len(run.steps)
    width = max(1, steps // MOST_BUCKETS)
    found: list[tuple[float, float]] = []
    for each in touched_ranges(run):
        # Places count from 1; half a step beyond the ends would make the axis longer.
        begin, end = max(1.0, each.first_row + 0.5), min(float(steps), each.last_row + 1.5)
        if found and begin - found[-1][1] < width:
            begin = found.pop()[0]
        found.append((begin, end))
    return found


def reduced_note(run: Run, how: str) -> str:
    """Say how many steps stand behind a point, where it is more than one."""
    steps = len(run.steps)
    if steps <= MOST_BUCKETS:
        return ""
    return f"{steps:,} steps, about {steps // MOST_BUCKETS:,} a point: {how}"

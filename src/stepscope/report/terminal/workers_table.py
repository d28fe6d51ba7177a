"""The answer of `stepscope workers`: the chart, the recommendation and the trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rich.console import Console

from stepscope.records.types import WorkerCandidate, WorkersAnswer
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.terminal.table_style import print_prose, print_rows, printable, say
from stepscope.report.terminal.text_chart import print_graph
from stepscope.units import (
    duration_format,
    format_bytes,
    format_count,
    format_known,
    format_share,
)


def workers_chart(found: WorkersAnswer) -> Chart:
    """Return the chart of samples per second by workers, the recommendation marked."""
    pick = (found["recommended"], found["recommended_threads"])
    return Chart(
        title="How many workers",
        kind="points",
        x="workers",
        y="samples/s",
        marks=[
            ChartMark(
                x=_number(row),
                y=rate["median"],
                low=rate["low"],
                high=rate["high"],
                chosen=(row["workers"], row["threads"]) == pick,
            )
            for row in found["candidates"]
            if (rate := row["samples_per_s"])["median"] is not None
        ],
    )


def print_workers(console: Console, found: WorkersAnswer) -> None:
    """Print the chart, its table, and the recommended setting."""
    print_graph(console, workers_chart(found))
    rows = [row for row in found["candidates"] if row["samples_per_s"]["median"] is not None]
    load = _duration(row["load_s"] for row in rows)
    start = _duration(row["loader_start_s"] for row in rows)
    cells = [
        [
            str(_number(row)),
            f"{row['samples_per_s']['median']:,.0f}",
            format_known(row["to_best"], "{:.0%}".format).replace("%", " %")
            + " tied" * row["tied_with_best"],
            format_known(row["wait_share"], format_share),
            format_known(row["load_s"], load),
            format_known(row["load_cpu_s"], load),
            format_known(row["loader_start_s"], start),
            format_known(row["memory_bytes"], format_bytes),
        ]
        for row in rows
    ]
    columns = ("workers", "samples/s", "of the best", "waits", "load", "CPU", "start", "memory")
    print_rows(console, columns, cells)
    for line in _details(found):
        print_prose(console, line)
    say(console, f"Trials: {found['path']}", "")
    print_prose(console, found["text"], style="bold")
    if found["change"] is not None:
        print_prose(console, printable(found["change"]))


def _duration(column: Iterable[float | None]) -> Callable[[float], str]:
    return duration_format([value for value in column if value is not None])


def _details(found: WorkersAnswer) -> Iterator[str]:
    """Yield what is to be known of the trials."""
    yield from found["warnings"]
    for row in found["candidates"]:
        if row["reason"]:
            yield f"{_number(row)} workers: {row['reason']}"
    if found["disturbed_rounds"]:
        rounds = format_count(found["disturbed_rounds"], "round")
        yield f"Other programs disturbed {rounds}, which decided nothing."
    yield (
        f"Bottleneck with {format_count(found['current'], 'worker')}, as now: "
        f"{found['bound_by']}: {found['bound_by_why']}."
    )


def _number(row: WorkerCandidate) -> int | str:
    if row["threads"] is None:
        return row["workers"]
    return f"{row['workers']}, threads {row['threads']}"

"""The answer of `stepscope workers`: the chart, the recommendation and the trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rich.console import Console

from stepscope.records.types import WorkerCandidate, WorkersAnswer
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.terminal.table_style import print_prose, print_rows, say
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
    *details, answer = _words(found)
    for line in details:
        print_prose(console, line)
    say(console, f"Trials: {found['path']}", "")
    print_prose(console, answer)


def _duration(column: Iterable[float | None]) -> Callable[[float], str]:
    return duration_format([value for value in column if value is not None])


def _words(found: WorkersAnswer) -> Iterator[str]:
    """Yield what is to be known of the trials, and last the answer."""
    yield from found["warnings"]
    for row in found["candidates"]:
        if row["reason"]:
            yield f"{_number(row)} workers: {row['reason']}"
    yield (
        f"Bottleneck with {format_count(found['current'], 'worker')}, as now: "
        f"{found['bound_by']}: {found['bound_by_why']}."
    )
    verified = found["verified"]
    gain = f"Not verified: {verified['reason']}."
    if verified["ratio"] is not None:
        interval = "too few rounds for an interval"
        if verified["low"] is not None:
            interval = f"95 %: {verified['low']:.2f} to {verified['high']:.2f}"
        gain = (
            f"Verified in {format_count(verified['rounds'] or 0, 'round')}: "
            f"{verified['ratio']:.2f} times the throughput of "
            f"{format_count(found['current'], 'worker')} ({interval}), {verified['verdict']}."
        )
    use = "Use" if found["decided"] else "Undecided; so far, use"
    yield f"{use} {_setting(found)}: {found['why']}. {gain}"


def _setting(found: WorkersAnswer) -> str:
    if found["of_script"]:
        return f"num_workers={found['recommended']} in the script's DataLoader"
    threads = found["recommended_threads"]
    return f"--workers {found['recommended']}" + (f" --threads {threads}" if threads else "")


def _number(row: WorkerCandidate) -> int | str:
    if row["threads"] is None:
        return row["workers"]
    return f"{row['workers']}, threads {row['threads']}"

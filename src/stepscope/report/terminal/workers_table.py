"""The answer of `stepscope workers`: the chart, the recommendation and the trials."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from stepscope.records.types import WorkerCandidate, WorkersAnswer
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.terminal.table_style import house_table, print_table, say
from stepscope.report.terminal.text_chart import print_graph
from stepscope.units import format_bytes, format_duration, format_known, format_share


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
    table = house_table(
        "workers", "samples/s", "to the best", "waits", "a batch takes", "on a CPU", "start",
        "pressure", "memory",
    )  # fmt: skip
    for row in found["candidates"]:
        if row["samples_per_s"]["median"] is not None:
            tied = " tied" if row["tied_with_best"] else ""
            table.add_row(
                str(_number(row)),
                f"{row['samples_per_s']['median']:,.0f}",
                format_known(row["to_best"], format_share) + tied,
                format_known(row["wait_share"], format_share),
                format_known(row["load_s"], format_duration),
                format_known(row["load_cpu_s"], format_duration),
                format_known(row["loader_start_s"], format_duration),
                format_known(row["pressure_cpu"], "{:.0f} %".format),
                format_known(row["memory_bytes"], format_bytes),
            )
    print_table(console, table)
    say(console, *_words(found))


def _words(found: WorkersAnswer) -> Iterator[str]:
    yield from found["warnings"]
    for row in found["candidates"]:
        if row["reason"]:
            yield f"{_number(row)} workers: {row['reason']}"
    sure = "" if found["decided"] else " (undecided: the noise hides what is left)"
    yield f"use {_setting(found)}: {found['why']}{sure}"
    yield f"now {found['current']}: bound by {found['bound_by']}: {found['bound_by_why']}"
    verified = found["verified"]
    if verified["ratio"] is not None:
        interval = ""
        if verified["low"] is not None:
            interval = f" (95 %: {verified['low']:.2f} to {verified['high']:.2f})"
        yield (
            f"verified in {verified['rounds']} rounds against {found['current']}: "
            f"{verified['ratio']:.2f} times the throughput{interval}: {verified['verdict']}"
        )
    else:
        yield f"not verified: {verified['reason']}"
    yield f"took {format_duration(found['cost_s'])}; trials: {found['path']}"


def _setting(found: WorkersAnswer) -> str:
    if found["of_script"]:
        return f"num_workers={found['recommended']} where the script makes its DataLoader"
    threads = found["recommended_threads"]
    return f"--workers {found['recommended']}" + (f" --threads {threads}" if threads else "")


def _number(row: WorkerCandidate) -> int | str:
    if row["threads"] is None:
        return row["workers"]
    return f"{row['workers']}, threads {row['threads']}"

"""How the findings of labs look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.report.live import workers_warning
from stepscope.report.memory import about_forecast, bill_table
from stepscope.report.tables import house_table, print_table
from stepscope.units import format_bytes, format_duration

Finding = Mapping[str, Any]


def print_labs(console: Console, labs: Mapping[str, str]) -> None:
    """List the labs, one a line."""
    width = max(map(len, labs))
    for name, about in labs.items():
        console.print(Text(f"{name:{width}}  {about}"), soft_wrap=True)


def print_finding(console: Console, finding: Finding) -> None:
    """Print what a lab found: its tables, then its answer."""
    PRINTERS[finding["lab"]](console, finding)
    _say(console, finding["answer"])


def _print_memory(console: Console, finding: Finding) -> None:
    spec, bill = finding["spec"], finding["bill"]
    _say(
        console,
        f"{spec['model']} on {spec['data']}, batch {spec['batch_size']:,}, {spec['optimizer']}, "
        f"{spec['workers']} workers",
        style="bold",
    )
    print_table(console, bill_table(bill))
    _say(console, about_forecast(bill))
    print_table(console, _phases(finding["phases"]))
    largest = finding["peak_phase"] or "? (this system keeps no high-water mark)"
    _say(console, f"the process was largest in: {largest}")
    _say(console, f"the tensors of a step are most in: {bill['peak_phase']} (counted)")
    _say(console, "\nwhat is there at the peak of a step, when it goes, and by what", style="bold")
    for kind in finding["freed"]:
        size = f"{kind['kind']}, {format_bytes(kind['bytes'])} (counted)"
        _say(console, f"- {size}: {kind['when']}; by {kind['by']}")
    print_table(console, _remedies(finding["remedies"]))
    for remedy in finding["remedies"]:
        if not remedy["applies"]:
            _say(console, f"not tried: {remedy['name']}: {remedy['reason']}")


def _phases(phases: list[dict[str, Any]]) -> Table:
    table = house_table(
        "measured in", "first step, at most", "later, at most", "at its end", "in use", "change"
    )
    for phase in phases:
        table.add_row(
            phase["phase"],
            _size(phase["first_step_peak_bytes"]),
            _size(phase["peak_bytes"]),
            _size(phase["end_bytes"]),
            _size(phase["in_use_bytes"]),
            _change(phase["change_bytes"]),
        )
    return table


def _remedies(remedies: list[dict[str, Any]]) -> Table:
    table = house_table("tried", "peak saved", "spread", "step time", "how")
    table.columns[-1].justify = "left"
    for remedy in remedies:
        if not remedy["applies"]:
            continue
        table.add_row(
            remedy["name"],
            format_bytes(remedy["saved_bytes"]) if remedy["differs"] else "no difference",
            format_bytes(remedy["spread_bytes"]),
            f"x {remedy['step_time_ratio']:.2f}"
            if remedy["step_time_differs"]
            else "about the same",
            remedy["how"],
        )
    return table


def _print_second_epoch(console: Console, finding: Finding) -> None:
    forecast = finding["forecast"]
    limit = format_bytes(finding["limit_bytes"])
    _say(console, f"limit: {limit} ({finding['limit_from']})", style="bold")
    if forecast["total_bytes"] is not None:
        _say(
            console,
            f"forecast: {_size(forecast['without_workers_bytes'])} without workers, "
            f"{_size(forecast['total_bytes'])} with {forecast['workers']}",
        )
    ahead = finding["forewarned"]
    midway = f"a limit midway between them, {format_bytes(ahead['limit_bytes'])}"
    _say(console, f"{midway}: {workers_warning(ahead) or 'no warning'}")
    _say(console, f"under the limit of this run: {workers_warning(forecast) or 'no warning'}")
    print_table(console, _runs(finding))
    for fallback in finding["with_limit"]["fallbacks"]:
        _say(
            console,
            f"epoch {fallback['epoch']}, {fallback['split']}, batch {fallback['batch']}: "
            f"from {fallback['from']} workers to {fallback['to']}: {fallback['reason']}",
        )


def _runs(finding: Finding) -> Table:
    table = house_table("", "without a limit", "under the limit")
    both = (finding["without_limit"], finding["with_limit"])

    def row(name: str, show: Callable[[dict[str, Any]], str]) -> None:
        table.add_row(name, *map(show, both))

    row("status", lambda run: str(run["status"]))
    row("peak", lambda run: _size(run["peak_memory_bytes"]))
    row("time", lambda run: format_duration(run["wall_s"]) if run["wall_s"] else "?")
    row("steps", lambda run: f"{run['steps']:,}")
    for epoch in both[0]["samples_by_epoch"]:
        row(
            f"samples in epoch {epoch}",
            lambda run, epoch=epoch: f"{run['samples_by_epoch'].get(epoch, 0):,}",  # type: ignore[misc]
        )
    row("times with fewer workers", lambda run: str(len(run["fallbacks"])))
    table.add_row("losses", "", "the same" if finding["same_losses"] else "not the same")
    table.add_row("workers ended by the guard", "", str(finding["workers_ended_by_guard"]))
    table.add_row("workers ended by hand", "", str(finding["workers_ended_by_hand"]))
    return table


PRINTERS: dict[str, Callable[[Console, Finding], None]] = {
    "memory": _print_memory,
    "second-epoch": _print_second_epoch,
}


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else format_bytes(size_bytes)


def _change(size_bytes: int | None) -> str:
    if size_bytes is None:
        return ""
    return f"{'+' if size_bytes > 0 else ''}{format_bytes(size_bytes)}"

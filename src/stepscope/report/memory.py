"""How a memory bill looks: forecast, and after a run beside what was measured."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.analyze.where_memory_goes import pools_of
from stepscope.report.tables import house_table, print_table
from stepscope.spec.as_flags import as_flags
from stepscope.units import format_bytes, format_share


def print_forecast(console: Console, bill: dict[str, Any]) -> None:
    """Print a bill that was made before the run."""
    spec = bill["spec"]
    console.print(
        Text(
            f"{spec['model']} on {spec['data']}, {spec['device']}, batch {spec['batch_size']:,}, "
            f"{spec['optimizer']}, {spec['workers']} workers: forecast"
        )
    )
    print_table(console, forecast_table(bill))
    print_table(console, phase_table(bill))
    for line in _verdict(bill):
        console.print(Text(line), soft_wrap=True)


def forecast_table(bill: dict[str, Any]) -> Table:
    """Show the items of a forecast, how each was got, and what it is; and in which of the pools."""
    pools = pools_of(bill["items"])
    pool = ["pool"] if len(pools) > 1 else []
    table = house_table("memory", "forecast", *pool, "how", "what")
    for column in table.columns[2:]:
        column.justify = "left"
    for name, item in bill["items"].items():
        if item["bytes"]:
            where = [item["pool"]] if pool else []
            size = format_bytes(item["bytes"])
            table.add_row(_words(name), size, *where, item["how"], item["note"])
    table.add_section()
    for each in pools if pool else []:
        needed = sum(item["bytes"] for item in bill["items"].values() if item["pool"] == each)
        table.add_row(f"in all, {each}", format_bytes(needed))
    if not pool:
        table.add_row("in all", format_bytes(bill["total_bytes"]))
    return table


def bill_table(bill: dict[str, Any]) -> Table:
    """Show the items of a run that has ended: forecast, and measured where they can be."""
    several = _pools(bill)
    table = house_table("memory", "forecast", "measured", *(["pool"] if several else []), "")
    for column in table.columns[3:]:
        column.justify = "left"
    for name, item in bill["items"].items():
        if item["bytes"] or item["measured_bytes"]:
            where = [item["pool"]] if several else []
            sizes = (format_bytes(item["bytes"]), _size(item["measured_bytes"]))
            table.add_row(_words(name), *sizes, *where, item["how"])
    table.add_section()
    for pool, each in several.items():
        sizes = (format_bytes(each["total_bytes"]), _size(each["peak_bytes"]))
        table.add_row(f"in all, {pool}", *sizes)
    if not several:
        whole = _size(bill["peak_memory_bytes"])
        table.add_row("in all", format_bytes(bill["total_bytes"]), whole)
    return table


def phase_table(bill: dict[str, Any]) -> Table:
    """Show what the tensors of a step take, phase by phase."""
    table = house_table("tensors in", "at most", "at its end", "")
    table.columns[-1].justify = "left"
    for name, phase in bill["phases"].items():
        peak = "the peak" if name == bill["peak_phase"] else ""
        table.add_row(
            name, format_bytes(phase["peak_bytes"]), format_bytes(phase["end_bytes"]), peak
        )
    return table


def about_forecast(bill: dict[str, Any]) -> str:
    """Say in a line how good the forecast of a run was, of each pool where there are several."""
    several = _pools(bill)
    if not several:
        return f"memory forecast {_how_good(bill, 'the peak')}"
    said = (f"{pool} {_how_good(each, 'its peak')}" for pool, each in several.items())
    return f"memory forecast: {'; '.join(said)}"


def _how_good(compared: dict[str, Any], peak: str) -> str:
    error, unexplained = compared.get("error_share"), compared.get("unexplained_share")
    said = format_bytes(compared["total_bytes"])
    if error is None or unexplained is None:
        return said
    off = f"{error * 100:+.1f} %"
    return f"{said}, off by {off}; unexplained {format_share(unexplained)} of {peak}"


def _pools(bill: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was seen of each pool, where there is more than one to tell apart."""
    pools: dict[str, dict[str, Any]] = bill.get("pools") or {}
    return pools if len(pools) > 1 else {}


def _verdict(bill: dict[str, Any]) -> list[str]:
    limit = f"{format_bytes(bill['limit_bytes'])} ({bill['limit_of']})"
    needed_bytes = bill["limits"][bill["limit_pool"]]["needed_bytes"]
    lines = [
        f"fits: {format_share(needed_bytes / bill['limit_bytes'])} of {limit}"
        if bill["fits"]
        else f"does not fit: {format_bytes(needed_bytes)} of {limit}"
    ]
    for remedy in bill["remedies"]:
        changed = as_flags(remedy["settings"])
        fits = "fits" if remedy["fits"] else "does not fit"
        lines.append(f"  {changed}: {format_bytes(remedy['pool_bytes'])}, {fits}")
    return lines


def _words(name: str) -> str:
    return name.replace("_", " ")


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else format_bytes(size_bytes)

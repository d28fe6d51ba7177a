"""The answer of `stepscope bottleneck` as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from stepscope.report.terminal.table_style import house_table, print_table, say
from stepscope.units import format_duration, format_range, format_share

_WAYS = {
    "synthetic": "synthetic batches",
    "memory": "data in memory",
    "source": "data from its source, cold",
}


def print_stalls(console: Console, found: Mapping[str, Any]) -> None:
    """Print the rates of the three ways, the stalls by cause, and the possible gains."""
    table = house_table("the same training on", "samples/s", "95 % interval", "step", "waits")
    for way, words in _WAYS.items():
        seen = found["ways"][way]
        rate = seen["samples_per_s"]
        table.add_row(
            words,
            f"{rate['median']:,.0f}",
            format_range(rate["low"], rate["high"], "{:,.0f}".format, unknown="one run: ?"),
            format_duration(seen["step_s"]),
            format_share(seen["data_s"] / seen["step_s"]),
        )
    print_table(console, table)
    could = [
        f"{name} {rate:,.0f} samples/s" if rate else f"{name}: next to nothing to do"
        for name, rate in found["rates"].items()
    ]
    most = found["at_most"]
    say(
        console,
        f"bound by {found['bound_by']}: {found['why']}",
        f"each alone could do: {', '.join(could)} (with {found['workers'] or 'no'} workers)",
        f"more workers would bring {most['more_workers']:.2f} times the throughput at the most, "
        f"a faster disk {most['faster_storage']:.2f} times",
        f"caches that could not be emptied: {'; '.join(found['caches_not_emptied'])}",
        f"took {format_duration(found['cost_s'])}; trials: {found['path']}",
    )

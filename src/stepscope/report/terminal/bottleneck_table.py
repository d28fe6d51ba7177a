"""The answer of `stepscope bottleneck` as a table."""

from __future__ import annotations

from typing import Literal

from rich.console import Console

from stepscope.records.types import BottleneckAnswer
from stepscope.report.terminal.table_style import house_table, print_table, say
from stepscope.units import format_duration, format_known, format_range, format_share

_WAYS: dict[Literal["synthetic", "memory", "source"], str] = {
    "synthetic": "synthetic batches",
    "memory": "data in memory",
    "source": "data from its source, cold",
}


def print_stalls(console: Console, found: BottleneckAnswer) -> None:
    """Print the rates of the three ways, the stalls by cause, and the possible gains."""
    table = house_table("the same training on", "samples/s", "95 % interval", "step", "waits")
    for way, words in _WAYS.items():
        seen = found["ways"][way]
        rate = seen["samples_per_s"]
        table.add_row(
            words,
            format_known(rate["median"], "{:,.0f}".format),
            format_range(rate["low"], rate["high"], "{:,.0f}".format, unknown="too few rounds"),
            format_known(seen["step_s"], format_duration),
            format_share(seen["data_s"] / seen["step_s"])
            if seen["data_s"] is not None and seen["step_s"]
            else "?",
        )
    print_table(console, table)
    rates = found["rates"]
    could = [
        f"{name} {each:,.0f} samples/s" if each else f"{name}: next to nothing to do"
        for name, each in (
            ("compute", rates["compute"]),
            ("preprocessing", rates["preprocessing"]),
            ("fetching", rates["fetching"]),
        )
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

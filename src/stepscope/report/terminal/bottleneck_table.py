"""The answer of `stepscope bottleneck` as a table."""

from __future__ import annotations

from typing import Literal

from rich.console import Console

from stepscope.records.types import BottleneckAnswer
from stepscope.report.terminal.table_style import print_prose, print_rows, say
from stepscope.units import (
    duration_format,
    format_count,
    format_known,
    format_range,
    format_share,
)

_WAYS: dict[Literal["synthetic", "memory", "source"], str] = {
    "synthetic": "synthetic batches",
    "memory": "data in memory",
    "source": "data from its source, cold",
}


def print_stalls(console: Console, found: BottleneckAnswer) -> None:
    """Print the rates of the three ways, the stalls by cause, and the possible gains."""
    steps_s = (found["ways"][way]["step_s"] for way in _WAYS)
    duration = duration_format([step_s for step_s in steps_s if step_s is not None])
    rows = []
    for way, words in _WAYS.items():
        seen = found["ways"][way]
        rate, data_s, step_s = seen["samples_per_s"], seen["data_s"], seen["step_s"]
        rows.append(
            [
                words,
                format_known(rate["median"], "{:,.0f}".format),
                format_range(rate["low"], rate["high"], "{:,.0f}".format, unknown="too few rounds"),
                format_known(step_s, duration),
                format_share(data_s / step_s) if data_s is not None and step_s else "?",
            ]
        )
    columns = ("the same training on", "samples/s", "95 % interval", "step", "waits")
    print_rows(console, columns, rows)
    rates = found["rates"]
    alone = [
        f"{name} {rate:,.0f} samples/s" if rate else f"{name} almost no time"
        for name in ("compute", "preprocessing", "fetching")
        for rate in [rates[name]]
    ]
    most = found["at_most"]
    workers = format_count(found["workers"], "worker")
    print_prose(console, f"Each part alone, with {workers}: {', '.join(alone)}.")
    if found["caches_not_emptied"]:
        caches = "; ".join(found["caches_not_emptied"])
        print_prose(console, f"Caches that could not be emptied: {caches}.")
    say(console, f"Trials: {found['path']}", "")
    print_prose(
        console,
        f"Bottleneck: {found['bound_by']}: {found['why']}. More workers would bring at most "
        f"{most['more_workers']:.2f} times the throughput, a faster disk "
        f"{most['faster_storage']:.2f} times.",
    )

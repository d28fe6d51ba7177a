"""The answer of `stepscope doctor` as tables: checks, changes of settings, and peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.records.types import DoctorAnswer, MachineChange, PeaksAnswer
from stepscope.report.terminal.table_style import print_prose, print_rows, say
from stepscope.units import format_bytes, format_count

_STYLES = {"ok": "green", "warning": "yellow", "absent": "dim"}
_BUSY_PERCENT = 10.0


def print_checks(console: Console, found: DoctorAnswer) -> None:
    """Print one row for each check, with reason and advice for a warning, then the answer."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in found["checks"]:
        status = check["status"]
        lines = [Text(check["found"])]
        if status == "warning":
            lines += [Text(check["why"], style="dim"), Text(check["advice"] or "")]
        table.add_row(check["name"], Text(status, style=_STYLES[status]), Text("\n").join(lines))
    table.width = min(80, console.width)
    console.print(table)
    count = Counter(check["status"] for check in found["checks"])
    absent = f"{count['ok']} ok, {count['absent']} not available here"
    if count["warning"]:
        warnings = format_count(count["warning"], "warning")
        print_prose(
            console, f"{warnings} ({absent}): follow the advice above before you compare runs."
        )
    else:
        print_prose(console, f"This machine is ready to measure on ({absent}).")


def print_changes(console: Console, changes: Sequence[MachineChange]) -> None:
    """Print the settings to change, one line each."""
    say(console, *(f"{each['name']}: {each['before']} -> {each['after']}" for each in changes))


def print_peaks(console: Console, found: PeaksAnswer) -> None:
    """Print the measured peaks and their conditions, and why others could not be measured."""
    columns = ("device", "precision", "threads", "GFLOP/s", "matrices", "bandwidth")
    rows = [
        [
            str(peak["conditions"]["device_name"] or peak["conditions"]["device"]),
            peak["conditions"]["precision"],
            str(peak["conditions"]["threads"] or ""),
            f"{peak['flop_per_s'] / 1e9:,.1f}",
            f"{peak['matrix_size']} x {peak['matrix_size']}",
            f"{format_bytes(peak['bytes_per_s'])}/s",
        ]
        for peak in found["peaks"]
    ]
    print_rows(console, columns, rows)
    pressure = max((peak["pressure_cpu"] or 0.0 for peak in found["peaks"]), default=0.0)
    if pressure > _BUSY_PERCENT:
        print_prose(
            console,
            f"The machine was busy: tasks waited for a CPU {pressure:.0f} % of the time. Measure "
            "again when it is quiet; the best result is kept.",
        )
    for what, reason in found["left_out"].items():
        print_prose(console, f"{what} could not be measured: {reason}")
    print_prose(console, "Saved: reports compare runs with these peaks.")

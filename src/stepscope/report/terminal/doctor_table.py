"""The answer of `stepscope doctor` as tables: checks, changes of settings, and peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepscope.records.types import DoctorAnswer, MachineChange, PeaksAnswer
from stepscope.report.terminal.table_style import house_table, print_table, say
from stepscope.units import format_bytes, format_count

_STYLES = {"ok": "green", "warning": "yellow", "absent": "dim"}
_BUSY_PERCENT = 10.0


def print_checks(console: Console, found: DoctorAnswer) -> None:
    """Print one line for each check; below a warning, its reason and advice."""
    checks = found["checks"]
    width = max((len(check["name"]) for check in checks), default=0)
    for check in checks:
        status = check["status"]
        line = Text(f"{check['name']:<{width}}  ")
        line.append(f"{status:<7}", style=_STYLES[status])
        line.append(f"  {check['found']}")
        console.print(line, soft_wrap=True)
        if status == "warning":
            below = " " * (width + 11)
            say(console, f"{below}{check['why']}", style="dim")
            if check["advice"]:
                say(console, f"{below}{check['advice']}")
    count = Counter(check["status"] for check in checks)
    warnings = format_count(count["warning"], "warning")
    say(console, f"{count['ok']} ok, {warnings}, {count['absent']} absent")


def print_changes(console: Console, changes: Sequence[MachineChange]) -> None:
    """Print the settings to change, one line each."""
    for change in changes:
        say(console, f"{change['name']}: {change['before']} -> {change['after']}")


def print_peaks(console: Console, found: PeaksAnswer) -> None:
    """Print the measured peaks and their conditions, and why others could not be measured."""
    table = house_table("device", "precision", "threads", "GFLOP/s", "matrices", "bandwidth")
    for peak in found["peaks"]:
        of, size = peak["conditions"], peak["matrix_size"]
        table.add_row(
            str(of["device_name"] or of["device"]),
            of["precision"],
            str(of["threads"] or ""),
            f"{peak['flop_per_s'] / 1e9:,.1f}",
            f"{size} x {size}",
            f"{format_bytes(peak['bytes_per_s'])}/s",
        )
    print_table(console, table)
    said = "the best so far of products of matrices and of sums of arrays; runs are held against it"
    say(console, said, style="dim")
    pressure = max((peak["pressure_cpu"] or 0.0 for peak in found["peaks"]), default=0.0)
    if pressure > _BUSY_PERCENT:
        say(
            console,
            f"other programs were at work: {pressure:.0f} % of the time a task waited for a CPU. "
            "Measure again when it is quiet; the best is kept.",
        )
    for what, reason in found["left_out"].items():
        say(console, f"{what} could not be measured: {reason}")

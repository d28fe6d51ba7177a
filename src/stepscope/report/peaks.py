"""The peaks of a machine, as a table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.report.tables import house_table, print_table
from stepscope.units import format_bytes

_BUSY_PERCENT = 10.0


def print_peaks(console: Console, peaks: Sequence[Mapping[str, Any]]) -> None:
    """Print what was measured, and what it holds for."""
    table = house_table("device", "precision", "threads", "GFLOP/s", "matrices", "bandwidth")
    for peak in peaks:
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
    console.print(Text(said, style="dim"), soft_wrap=True)
    pressure = max((peak["pressure_cpu"] or 0.0 for peak in peaks), default=0.0)
    if pressure > _BUSY_PERCENT:
        console.print(
            f"other programs were at work: {pressure:.0f} % of the time a task waited for a CPU. "
            "Measure again when it is quiet; the best is kept.",
            soft_wrap=True,
        )

"""The estimate for an accelerator as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.report.charts.search_charts import LEVELS
from stepscope.report.terminal.table_style import house_table, print_table
from stepscope.units import format_share

_NOT_VALIDATED = (
    "groups, a batch, or bounds that the array's width does not divide: not compared with Timeloop"
)


def print_estimate(console: Console, found: Mapping[str, Any]) -> None:
    """Print an estimate from the mapping that `stepscope estimate --json` prints."""
    if "layers" in found:
        _print_network(console, found)
    else:
        _print_layer(console, found)


def _print_network(console: Console, found: Mapping[str, Any]) -> None:
    shape = "x".join(map(str, found["input"]))
    console.print(Text(f"\n{found['model']} on {found['design']}: input {shape}", style="bold"))
    table = house_table("layer", "C", "M", "PxQ", "RxS", "energy, uJ", "cycles", "array used")
    for layer in found["layers"]:
        bounds = layer["layer"]
        table.add_row(
            Text(layer["name"] + ("" if layer["validated"] else " *")),
            f"{bounds['C']:,}",
            f"{bounds['M']:,}",
            f"{bounds['P']}x{bounds['Q']}",
            f"{bounds['R']}x{bounds['S']}",
            f"{layer['energy_uj']:,.2f}",
            f"{layer['cycles']:,}",
            format_share(layer["utilization"]),
        )
    print_table(console, table)
    peak = f"{found['peak_activation_bytes']:,} bytes of activations"
    total = f"{found['energy_mj']:.5g} mJ, {found['cycles']:,} cycles, at most {peak}"
    total += f" (at {found['peak_activation_at']})"
    console.print(Text(total), soft_wrap=True)
    free = ", ".join(f"{count} {kind}" for kind, count in found["costs_nothing"].items())
    if free:
        console.print(Text(f"costs nothing in this model: {free}"), soft_wrap=True)
    if found["not_validated"]:
        console.print(Text(f"* {_NOT_VALIDATED}"), soft_wrap=True)
    for line in found["not_estimated"]:
        console.print(Text(f"not estimated: {line}"), soft_wrap=True)


def _print_layer(console: Console, found: Mapping[str, Any]) -> None:
    bounds = ", ".join(f"{name}={bound}" for name, bound in found["layer"].items())
    console.print(Text(f"\n{bounds} on {found['design']}", style="bold"), soft_wrap=True)
    table = house_table("level", "energy, uJ", "share")
    for level in LEVELS:
        energy = found["energy_uj_by_level"][level]
        table.add_row(level, f"{energy:,.2f}", format_share(energy / found["energy_uj"]))
    print_table(console, table)
    used = f"{format_share(found['utilization'])} of the array used"
    total = f"{found['energy_uj']:,.2f} uJ, {found['cycles']:,} cycles, {used}"
    console.print(Text(total), soft_wrap=True)
    for line in found["mapping"]:
        console.print(Text(f"  {line}"), soft_wrap=True)
    pruned = 1 - found["evaluated"] / found["space"]
    ruled_out = f"{100 * pruned:.4f} % of them were ruled out unseen"
    console.print(Text(f"the best of {found['space']:,} mappings; {ruled_out}"), soft_wrap=True)
    if not found["validated"]:
        console.print(Text(_NOT_VALIDATED), soft_wrap=True)

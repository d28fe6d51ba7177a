"""The estimate for an accelerator as tables, and the energy of its layers as a chart."""

from __future__ import annotations

from rich.console import Console

from stepscope.records.types import LayerEstimate, NetworkEstimate, ScoreAnswer
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.terminal.table_style import print_prose, print_rows, say
from stepscope.units import format_share

_LEVELS = ("dram", "buffer", "scratchpad", "registers", "mac")
_NOT_VALIDATED = (
    "not validated against Timeloop: grouped, batched, or not divisible by the array's size"
)


def energy_chart(found: LayerEstimate | NetworkEstimate) -> Chart:
    """Return the chart of the energy of each layer by level of the memory hierarchy."""
    if "layers" in found:
        title = f"Energy of {found['model']}"
        energies = [(layer["name"], layer["energy_uj_by_level"]) for layer in found["layers"]]
    else:
        title, energies = "Energy of a layer", [("the layer", found["energy_uj_by_level"])]
    marks = [
        ChartMark(name, levels[level], level) for name, levels in energies for level in _LEVELS
    ]
    about = f"{found['energy_mj']:.4g} mJ and {found['cycles']:,} cycles on {found['design']}"
    return Chart(title, "rows", "", "energy, uJ", marks, about)


def print_score(console: Console, found: ScoreAnswer) -> None:
    """Print the points by part, and the limits and rules that were broken."""
    parts = {
        "accuracy": f"{found['accuracy']:.2%} test accuracy",
        "energy": f"{found['energy_mj']:.5g} mJ",
        "latency": f"{found['cycles']:,.0f} cycles",
    }
    say(
        console,
        *(f"  {points:3} for {parts[part]}" for part, points in found["by_part"].items()),
        *(f"limit exceeded: {line}" for line in found["limits_exceeded"]),
        *(f"rule broken: {line}" for line in found["rules_broken"]),
        *(f"unknown: {line}" for line in found["unknown"]),
    )
    say(console, f"{found['points']} points", style="bold")


def print_estimate(console: Console, found: LayerEstimate | NetworkEstimate) -> None:
    """Print the estimate of a network or of one layer."""
    if "layers" in found:
        _print_network(console, found)
    else:
        _print_layer(console, found)


def _print_network(console: Console, found: NetworkEstimate) -> None:
    shape = "x".join(map(str, found["input"]))
    say(console, f"\n{found['model']} on {found['design']}: input {shape}", style="bold")
    rows = [
        [
            layer["name"] + ("" if layer["validated"] else " *"),
            f"{layer['layer']['C']:,}",
            f"{layer['layer']['M']:,}",
            "{P}x{Q}".format(**layer["layer"]),
            "{R}x{S}".format(**layer["layer"]),
            f"{layer['energy_uj']:,.2f}",
            f"{layer['cycles']:,}",
            format_share(layer["utilization"]),
        ]
        for layer in found["layers"]
    ]
    columns = ("layer", "C", "M", "PxQ", "RxS", "energy, uJ", "cycles", "array used")
    print_rows(console, columns, rows)
    free = ", ".join(f"{count} {kind}" for kind, count in found["costs_nothing"].items())
    if free:
        print_prose(console, f"Counted as free: {free}.")
    if found["not_validated"]:
        print_prose(console, f"* {_NOT_VALIDATED}")
    say(console, *(f"not estimated: {line}" for line in found["not_estimated"]))
    print_prose(
        console,
        f"{found['model']} takes {found['energy_mj']:.5g} mJ and {found['cycles']:,} cycles. Its "
        f"activations peak at {found['peak_activation_bytes']:,} bytes, in "
        f"{found['peak_activation_at']}.",
    )


def _print_layer(console: Console, found: LayerEstimate) -> None:
    bounds = ", ".join(f"{name}={bound}" for name, bound in found["layer"].items())
    say(console, f"\n{bounds} on {found['design']}", style="bold")
    energies = found["energy_uj_by_level"]
    rows = [
        [level, f"{energies[level]:,.2f}", format_share(energies[level] / found["energy_uj"])]
        for level in _LEVELS
    ]
    print_rows(console, ("level", "energy, uJ", "share"), rows)
    pruned = 100 * (1 - found["evaluated"] / found["space"])
    say(
        console,
        f"the best of {found['space']:,} mappings; {pruned:.4f} % were pruned without evaluation:",
        *(f"  {line}" for line in found["mapping"]),
    )
    if not found["validated"]:
        print_prose(console, _NOT_VALIDATED)
    print_prose(
        console,
        f"The layer takes {found['energy_uj']:,.2f} uJ and {found['cycles']:,} cycles, with "
        f"{format_share(found['utilization'])} of the array used.",
    )

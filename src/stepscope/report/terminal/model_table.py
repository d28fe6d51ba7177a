"""A network as tables: layers, totals, memory, and operations that were not counted."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.records.types import NetworkAnswer
from stepscope.report.terminal.table_style import house_table, print_prose, print_table, say
from stepscope.units import format_bytes


def print_network(console: Console, network: NetworkAnswer) -> None:
    """Print a network from the mapping that `stepscope summary --json` prints."""
    norm = "" if network["norm"] == "batch" else ", without batch norm"
    shape, classes = _shape(network["input"]), f"{network['classes']:,} classes"
    say(console, f"\n{network['model']}{norm}: input {shape}, {classes}, one sample", style="bold")
    print_table(console, _layer_table(network))
    size = house_table("size, as counted by torchsummary", "MiB")
    for name, size_mb in (
        ("input", network["input_mb"]),
        ("forward and backward", network["forward_backward_mb"]),
        ("parameters", network["parameters_mb"]),
        ("total", network["total_mb"]),
    ):
        size.add_row(name, f"{size_mb:,.2f}")
    print_table(console, size)
    states = house_table("optimiser state", "values per parameter", "size")
    for name, state in network["optimizer_state"].items():
        states.add_row(name, f"{state['values_per_parameter']:g}", format_bytes(state["bytes"]))
    print_table(console, states)
    if network["not_counted"]:
        say(console, "not counted", style="bold")
        say(console, *(f"- {line}" for line in network["not_counted"]))
    if network["last_layer_input"] is not None:
        taken = _shape(network["last_layer_input"])
        say(console, f"input of the last layer, {network['last_layer']}: {taken}")
    say(console, f"convolutions: {network['convolutions']:,}")
    print_prose(console, _answer(network))


def _layer_table(network: NetworkAnswer) -> Table:
    table = house_table("layer", "kind", "output", "parameters", "MACs", "kept", left=(0, 1))
    for layer in network["layers"]:
        table.add_row(
            Text(layer["name"]),
            Text(layer["kind"]),
            _shape(layer["output_shape"]),
            _count(layer["parameters"]),
            _short(layer["macs"]),
            format_bytes(layer["kept_bytes"]) if layer["kept_bytes"] else "",
        )
    table.add_section()
    table.add_row(
        "total",
        "",
        "",
        f"{network['parameters']:,}",
        _short(network["macs"]) or "0",
        format_bytes(network["kept_bytes"]),
    )
    return table


def _answer(network: NetworkAnswer) -> str:
    parameters, trained = network["parameters"], network["trainable_parameters"]
    some = "all trainable" if trained == parameters else f"{trained:,} trainable"
    if network["gradients"] != trained:
        some += f", {network['gradients']:,} with a gradient"
    unknown = any(layer["macs"] is None for layer in network["layers"])
    more = " (some layers unknown)" if unknown else ""
    return (
        f"{network['model']} has {parameters:,} parameters ({some}). A forward pass of one sample "
        f"takes {network['macs']:,} MACs{more} and keeps {format_bytes(network['kept_bytes'])} for "
        "the backward pass."
    )


def _shape(shape: Sequence[int] | None) -> str:
    """Return `64x32x32`; empty for a scalar and for a layer that was never called."""
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def _count(number: int) -> str:
    """Return a number, or nothing for 0: most layers have no parameters."""
    return f"{number:,}" if number else ""


def _short(macs: int | None) -> str:
    if macs is None:
        return "?"
    return f"{macs * 1e-6:,.1f} M" if macs >= 10**6 else _count(macs)

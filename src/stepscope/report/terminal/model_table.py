"""A network as tables: layers, totals, memory, and operations that were not counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.records.types import NetworkAnswer, OptimizerCounts
from stepscope.report.terminal.table_style import house_table, print_table, say
from stepscope.units import format_bytes


def print_network(console: Console, network: NetworkAnswer) -> None:
    """Print a network from the mapping that `stepscope summary --json` prints."""
    norm = "" if network["norm"] == "batch" else ", without batch norm"
    shape, classes = _shape(network["input"]), f"{network['classes']:,} classes"
    say(console, f"\n{network['model']}{norm}: input {shape}, {classes}, one sample", style="bold")
    print_table(console, _layer_table(network))
    say(console, *_answers(network))
    print_table(console, _size_table(network))
    print_table(console, _optimizer_table(network["optimizer_state"]))
    if network["not_counted"]:
        say(console, "not counted", style="bold")
        say(console, *(f"- {line}" for line in network["not_counted"]))


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


def _answers(network: NetworkAnswer) -> Iterator[str]:
    trained, gradients = network["trainable_parameters"], network["gradients"]
    whole = trained == network["parameters"]
    some = "all of them trained" if whole else f"{trained:,} of them trained"
    many = "as many gradients" if gradients == trained else f"{gradients:,} gradients"
    yield f"parameters: {network['parameters']:,}, {some}, {many}"
    unknown = any(layer["macs"] is None for layer in network["layers"])
    more = ", and some that are unknown" if unknown else ""
    yield f"multiply-adds of a forward pass: {network['macs']:,} MAC{more}"
    yield f"kept for the backward pass: {format_bytes(network['kept_bytes'])}"
    yield f"convolutions: {network['convolutions']:,}"
    if network["last_layer_input"] is not None:
        taken = _shape(network["last_layer_input"])
        yield f"the last layer, {network['last_layer']}, takes {taken}"


def _size_table(network: NetworkAnswer) -> Table:
    table = house_table("size, as torchsummary counts it", "MiB")
    table.add_row("input", f"{network['input_mb']:,.2f}")
    table.add_row("forward and backward", f"{network['forward_backward_mb']:,.2f}")
    table.add_row("parameters", f"{network['parameters_mb']:,.2f}")
    table.add_row("total", f"{network['total_mb']:,.2f}")
    return table


def _optimizer_table(states: Mapping[str, OptimizerCounts]) -> Table:
    table = house_table("state of the optimiser", "values a parameter", "size")
    for name, state in states.items():
        values = f"{state['values_per_parameter']:g}"
        table.add_row(name, values, format_bytes(state["bytes"]))
    return table


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

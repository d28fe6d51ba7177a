"""A network as tables: layers, totals, memory, and operations that were not counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from stepscope.records.types import NetworkAnswer
from stepscope.report.terminal.table_style import print_prose, print_rows, say
from stepscope.units import format_bytes


def print_network(console: Console, network: NetworkAnswer) -> None:
    """Print a network from the mapping that `stepscope summary --json` prints."""
    norm = "" if network["norm"] == "batch" else ", without batch norm"
    shape, classes = _shape(network["input"]), f"{network['classes']:,} classes"
    say(console, f"\n{network['model']}{norm}: input {shape}, {classes}, one sample", style="bold")
    columns = ("layer", "kind", "output", "parameters", "MACs", "kept")
    print_rows(console, columns, _layer_rows(network), left=(0, 1))
    sizes_mb = {
        "input": network["input_mb"],
        "forward and backward": network["forward_backward_mb"],
        "parameters": network["parameters_mb"],
        "total": network["total_mb"],
    }
    rows = [[name, f"{size_mb:,.2f}"] for name, size_mb in sizes_mb.items()]
    print_rows(console, ("size, as counted by torchsummary", "MiB"), rows)
    rows = [
        [name, f"{state['values_per_parameter']:g}", format_bytes(state["bytes"])]
        for name, state in network["optimizer_state"].items()
    ]
    print_rows(console, ("optimiser state", "values per parameter", "size"), rows)
    if network["not_counted"]:
        say(console, "not counted", style="bold")
        say(console, *(f"- {line}" for line in network["not_counted"]))
    if network["last_layer_input"] is not None:
        taken = _shape(network["last_layer_input"])
        say(console, f"input of the last layer, {network['last_layer']}: {taken}")
    say(console, f"convolutions: {network['convolutions']:,}")
    print_prose(console, _answer(network))


def _layer_rows(network: NetworkAnswer) -> Iterator[list[str]]:
    for layer in network["layers"]:
        yield [
            layer["name"],
            layer["kind"],
            _shape(layer["output_shape"]),
            _count(layer["parameters"]),
            _short(layer["macs"]),
            format_bytes(layer["kept_bytes"]) if layer["kept_bytes"] else "",
        ]
    yield []
    total = (f"{network['parameters']:,}", _short(network["macs"]) or "0")
    yield ["total", "", "", *total, format_bytes(network["kept_bytes"])]


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

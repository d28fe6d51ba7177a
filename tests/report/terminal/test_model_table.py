"""A network on a terminal: whole names, readable totals, nothing taken for markup."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from stepscope.report.terminal.model_table import print_network


def layer(name: str, **changes: Any) -> dict[str, Any]:
    plain = {"kind": "Linear", "calls": 1, "output_shape": [10], "parameters": 0, "macs": 0}
    return {"name": name, **plain, "kept_bytes": 0, **changes}


NETWORK: dict[str, Any] = {
    "model": "mine:net",
    "input": [3, 32, 32],
    "norm": "batch",
    "classes": 1000,
    "parameters": 175_000_000_000,
    "trainable_parameters": 175_000_000_000,
    "gradients": 175_000_000_000,
    "convolutions": 0,
    "last_layer": "head",
    "last_layer_input": [512],
    "macs": 175_000_000_000_000,
    "kept_bytes": 3 * 2**40,
    "layers": [layer("head", parameters=175_000_000_000, macs=175_000_000_000_000)],
    "input_mb": 0.0117,
    "forward_backward_mb": 123_456.789,
    "parameters_mb": 667_572.02,
    "total_mb": 791_028.82,
    "optimizer_state": {"sgd": {"values_per_parameter": 0, "bytes": 0}},
    "not_counted": [],
}


def printed(width: int = 80, **changes: Any) -> str:
    file = StringIO()
    print_network(Console(width=width, file=file), {**NETWORK, **changes})
    return file.getvalue()


@pytest.mark.parametrize("width", [20, 80, 300])
def test_the_largest_totals_are_whole_on_any_console(width):
    text = printed(width)
    for figure in ("175,000,000,000", "175,000,000.0 M", "3.0 TiB", "123,456.79", "791,028.82"):
        assert figure in text
    assert "…" not in text


def test_names_are_not_taken_for_markup_and_not_cut():
    long = "block." * 40 + "[bold]end[/bold]"
    text = printed(layers=[layer(long, kind="[/red]")], not_counted=[f"{long} was never called"])
    assert text.count(long) == 2
    assert "[/red]" in text


def test_unknown_is_a_question_mark_and_nothing_is_left_empty():
    rows = [layer("odd", macs=None, output_shape=None), layer("one", output_shape=[])]
    lines = printed(layers=rows).splitlines()
    odd, one = (
        next(line for line in lines if line.startswith(f" {name} ")) for name in ("odd", "one")
    )
    assert odd.split() == ["odd", "Linear", "?", "?"]
    assert one.split() == ["one", "Linear", "scalar"]
    assert "(some layers unknown)" in printed(layers=rows)


def test_frozen_parameters_are_told_apart():
    text = printed(parameters=30, trainable_parameters=10, gradients=4)
    assert "30 parameters (10 trainable, 4 with a gradient)" in text
    assert "parameters (all trainable)." in printed()


def test_what_was_not_counted_is_listed_and_only_then():
    assert "not counted" not in printed()
    assert "not counted\n- this\n- that\n" in printed(not_counted=["this", "that"])


def test_a_network_without_parameters_has_no_last_layer():
    assert "input of the last layer, head: 512" in printed()
    assert "last layer" not in printed(last_layer=None, last_layer_input=None)

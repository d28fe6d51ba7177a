"""`stepscope estimate`: energy, cycles and peak activation on an accelerator."""

from __future__ import annotations

import contextlib
import importlib.util
import json as json_module
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from stepscope.cli.chart_file import leave_chart
from stepscope.cli.layout import layout_of
from stepscope.errors import MissingExtraError, RequestError
from stepscope.models import registry
from stepscope.report.accelerator import print_estimate
from stepscope.report.accelerator_chart import energy_chart
from stepscope.report.charts import check_form

if TYPE_CHECKING:
    from stepscope.estimate.accelerator.mapper import Widths

_SPATIAL = re.compile(r"\s*([1-9][0-9]{0,3})\s*[xX]\s*([1-9][0-9]{0,3})\s*")


def estimate(
    model: str | None = None,
    /,
    *,
    layer: str | None = None,
    shape: Annotated[str | None, Parameter(name="--input")] = None,
    classes: str | None = None,
    spatial: str = "free",
    design: str = "simple_weight_stationary",
    chart: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Estimate energy, cycles and peak activation on a weight-stationary accelerator.

    `stepscope estimate MODEL` for a network;
    `stepscope estimate --layer C=64,M=64,P=32,Q=32,R=3,S=3` for one layer.

    Parameters
    ----------
    model
        A network of the zoo, or package.module:factory for your own.
    layer
        One layer instead: channels in (C) and out (M), output rows and columns (P, Q), kernel
        (R, S), and stride, groups, batch where they are not 1.
    shape
        Shape of one sample, like 3,32,32 [default: what the zoo's network is laid out for].
    classes
        How many classes the model is built for [default: the zoo's number, 10 for your own].
    spatial
        How wide M and C spread over the array: free, or MxC such as 8x16.
    design
        The accelerator: simple_weight_stationary, or a TOML file of the same form.
    chart
        A file for the energy of each layer by level: .png, .svg, .pdf, .html or .json.
    json
        Print one JSON object, and nothing else, on standard output.
    """
    if (model is None) == (layer is None):
        raise RequestError("estimate: wanted a model or --layer, one of the two.")
    for package in ("numpy",) if layer is not None else ("numpy", "torch"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("an estimate", package, "train")
    if chart is not None:
        check_form(chart)
    found = (
        _of_layer(layer, spatial, design)
        if model is None
        else estimate_model(model, shape, classes, spatial, design)
    )
    if json:
        print(json_module.dumps(found))
    else:
        print_estimate(Console(), found)
    if chart is not None:
        leave_chart(energy_chart(found), chart, as_json=json)
    return 0


def _of_layer(text: str | None, spatial: str, design: str) -> dict[str, Any]:
    from stepscope.estimate.accelerator.design import load_design
    from stepscope.estimate.accelerator.estimate import estimate_layer
    from stepscope.estimate.accelerator.layer import read_layer

    return estimate_layer(read_layer(text or ""), load_design(design), _widths(spatial))


def check_spatial(spatial: str, design: str) -> None:
    """Refuse an accelerator that is not there, and spatial factors that are wider than its array.

    Raises:
        RequestError: it is so.
    """
    from stepscope.estimate.accelerator.design import load_design
    from stepscope.estimate.accelerator.mapper import check_widths

    check_widths(load_design(design), _widths(spatial))


def estimate_model(
    model: str, shape: str | None, classes: str | None, spatial: str, design: str
) -> dict[str, Any]:
    """Estimate a model by name; what is not asked for is the zoo's."""
    sample_shape, count = layout_of(model, shape, classes)
    entry = registry.ZOO.get(model)
    if entry is not None and entry.tokens is not None:
        raise RequestError(f"model {model} takes texts, and only networks of images are estimated.")
    from stepscope.estimate.accelerator.design import load_design
    from stepscope.estimate.accelerator.estimate import estimate_network
    from stepscope.estimate.accelerator.mapper import check_widths

    accelerator, widths = load_design(design), _widths(spatial)
    check_widths(accelerator, widths)  # before the network is built, which takes seconds
    # What somebody's own model prints is not what was asked for.
    with contextlib.redirect_stdout(sys.stderr):
        built = registry.build(model, classes=count, norm="batch")
        return estimate_network(built, sample_shape, model, accelerator, widths)


def _widths(spatial: str) -> Widths:
    from stepscope.estimate.accelerator.mapper import Widths

    if spatial.strip().lower() == "free":
        return Widths()
    pair = _SPATIAL.fullmatch(spatial)
    if pair is None:
        raise RequestError(f"spatial: wanted free, or MxC such as 8x16, found {spatial!r}.")
    return Widths(m=int(pair[1]), c=int(pair[2]))

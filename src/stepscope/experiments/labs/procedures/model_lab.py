"""What is in the model? Counted from one forward pass; nothing is trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_trials import LabResult, LabRow
from stepscope.experiments.sweep_run import SweepListener
from stepscope.records.types import LabExtras, NetworkCounts
from stepscope.settings.load_settings import validate

_IMAGE, _CLASSES = (3, 32, 32), 10
_OPTIMIZERS = {"sgd": "SGD with momentum", "adam": "Adam"}


def run_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Count the network with and without its batch-norm layers."""
    from stepscope.models import registry
    from stepscope.models.model_summary import count_network  # needs torch

    model = plan.spec.model
    listener.output(f"counting {model}")
    networks = {}
    for setting in plan.settings:
        norm: Literal["batch", "none"] = "none" if setting.values["norm"] == "none" else "batch"
        built = registry.build(model, classes=_CLASSES, norm=norm)
        networks[norm] = count_network(built, _IMAGE, model)
    columns = {f"norm_{norm}": _figures(network) for norm, network in networks.items()}
    first, *_ = networks.values()
    rows: list[LabRow] = [
        {"what": what, **{column: figures[what] for column, figures in columns.items()}}
        for what in _figures(first)
    ]
    curves: list[LabRow] = [
        {"stage": stage, "norm": norm, "parameters": parameters}
        for norm, network in networks.items()
        for stage, parameters in _by_stage(network).items()
    ]
    answer = (
        f"{model} has {first['convolutions']} convolutions, {first['trainable_parameters']:,} "
        f"trainable parameters and {first['gradients']:,} gradients. The input of its last layer, "
        f"{first['last_layer']}, has the shape {_shape(first['last_layer_input'])}."
    )
    # Data and epochs are not used, whatever the scale.
    extras: LabExtras = {"subject": f"{model}, one image of 32x32", "note": None}
    return LabResult(answer, rows=rows, curves=curves, extras=extras)


def _figures(network: NetworkCounts) -> LabRow:
    from stepscope.models.model_summary import optimizer_state
    from stepscope.train.optimizers import make_optimizer

    convolved = [
        layer["output_shape"] for layer in network["layers"] if layer["kind"].startswith("Conv")
    ]
    kept = {}
    for optimizer, title in _OPTIMIZERS.items():
        make = partial(make_optimizer, validate({"optimizer": optimizer}))
        state = optimizer_state(make, network["gradients"])
        kept[f"state per parameter, {title}"] = state["values_per_parameter"]
    return {
        "convolutions": network["convolutions"],
        "trainable parameters": network["trainable_parameters"],
        "gradients": network["gradients"],
        "output of the last convolution": _shape(convolved[-1] if convolved else None),
        "input of the last layer": _shape(network["last_layer_input"]),
        **kept,
        "input, MB": round(network["input_mb"], 2),
        "forward and backward, MB": round(network["forward_backward_mb"], 2),
        "parameters, MB": round(network["parameters_mb"], 2),
        "total, MB": round(network["total_mb"], 2),
    }


def _by_stage(network: NetworkCounts) -> dict[str, int]:
    """Add up parameters by stage: the first part of a layer's name, with its number."""
    stages: dict[str, int] = {}
    for layer in network["layers"]:
        first, *rest = layer["name"].split(".")
        stage = f"{first} {rest[0]}" if rest and rest[0].isdecimal() else first
        stages[stage] = stages.get(stage, 0) + layer["parameters"]
    return {stage: parameters for stage, parameters in stages.items() if parameters}


def _shape(shape: list[int] | None) -> str:
    return "?" if shape is None else "x".join(map(str, shape))

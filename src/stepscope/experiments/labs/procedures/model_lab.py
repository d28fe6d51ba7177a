"""What is in the model? Counted while a sample goes through it; nothing is trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_trials import LabResult, LabRow
from stepscope.experiments.sweep_run import SweepListener
from stepscope.records.types import LabExtras
from stepscope.settings.load_settings import validate

if TYPE_CHECKING:
    from stepscope.models.model_summary import NetworkSummary

# What is counted for, whatever the network was laid out for.
_IMAGE, _CLASSES = (3, 32, 32), 10
_OPTIMIZERS = {"sgd": "SGD with momentum", "adam": "Adam"}


def run_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Count the network with its batch norms and without."""
    from stepscope.models import registry
    from stepscope.models.model_summary import count_network  # needs torch

    model = plan.spec.model
    listener.output(f"counting {model}")
    networks = {}
    for setting in plan.settings:
        norm: Literal["batch", "none"] = "none" if setting.values["norm"] == "none" else "batch"
        built = registry.build(model, classes=_CLASSES, norm=norm)
        networks[norm] = count_network(built, _IMAGE, model)
    columns = {f"norm_{norm}": _answers(network) for norm, network in networks.items()}
    first, *_ = networks.values()
    rows: list[LabRow] = [
        {"what": what, **{column: answers[what] for column, answers in columns.items()}}
        for what in _answers(first)
    ]
    curves: list[LabRow] = [
        {"stage": stage, "norm": norm, "parameters": parameters}
        for norm, network in networks.items()
        for stage, parameters in _by_stage(network).items()
    ]
    answer = (
        f"{model} has {first.convolutions} convolutions and "
        f"{first.trainable_parameters:,} trainable parameters, with {first.gradients:,} gradients; "
        f"its last layer, {first.last_layer}, takes {_shape(first.last_layer_input)}."
    )
    # Whatever share of data and epochs was asked for: none of it is used.
    extras: LabExtras = {"subject": f"{model}, one image of 32x32", "note": None}
    return LabResult(answer, rows=rows, curves=curves, extras=extras)


def _answers(network: NetworkSummary) -> LabRow:
    convolved = [layer.output_shape for layer in network.layers if layer.kind.startswith("Conv")]
    return {
        "convolutions": network.convolutions,
        "trainable parameters": network.trainable_parameters,
        "gradients": network.gradients,
        "last convolution gives": _shape(convolved[-1] if convolved else None),
        "last layer takes": _shape(network.last_layer_input),
        **{
            f"values a parameter, {words}": _kept(network, name)
            for name, words in _OPTIMIZERS.items()
        },
        "input, MB": round(network.input_mb, 2),
        "forward and backward, MB": round(network.forward_backward_mb, 2),
        "parameters, MB": round(network.parameters_mb, 2),
        "total, MB": round(network.total_mb, 2),
    }


def _kept(network: NetworkSummary, optimizer: str) -> float:
    from stepscope.models.model_summary import optimizer_state
    from stepscope.train.optimizers import make_optimizer

    make = partial(make_optimizer, validate({"optimizer": optimizer}))
    return optimizer_state(make, network.gradients)["values_per_parameter"]


def _by_stage(network: NetworkSummary) -> dict[str, int]:
    """Add up parameters by the part of the network: the first name of a layer, and its number."""
    stages: dict[str, int] = {}
    for layer in network.layers:
        first, *rest = layer.name.split(".")
        stage = f"{first} {rest[0]}" if rest and rest[0].isdecimal() else first
        stages[stage] = stages.get(stage, 0) + layer.parameters
    return {stage: parameters for stage, parameters in stages.items() if parameters}


def _shape(shape: tuple[int, ...] | None) -> str:
    return "?" if shape is None else "x".join(map(str, shape))

"""What is in the model? Counted while a sample goes through it; nothing is trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.network_counts import count
from stepscope.settings.load_settings import validate

if TYPE_CHECKING:
    from stepscope.models.model_summary import NetworkSummary

_OPTIMIZERS = {"sgd": "SGD with momentum", "adam": "Adam"}


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Count the network with its batch norms and without."""
    tools.say(f"counting {plan.spec.model}")
    networks = {
        setting.values["norm"]: count(plan.spec.model, setting.values["norm"])
        for setting in plan.settings
    }
    rows = [
        {"what": what, **{f"norm_{norm}": row[what] for norm, row in answers.items()}}
        for answers in [{norm: _answers(network) for norm, network in networks.items()}]
        for what in next(iter(answers.values()))
    ]
    first = next(iter(networks.values()))
    curves = [
        {"stage": stage, "norm": norm, "parameters": parameters}
        for norm, network in networks.items()
        for stage, parameters in _by_stage(network).items()
    ]
    answer = (
        f"{plan.spec.model} has {first.convolutions} convolutions and "
        f"{first.trainable_parameters:,} trainable parameters, with {first.gradients:,} gradients; "
        f"its last layer, {first.last_layer}, takes {_shape(first.last_layer_input)}."
    )
    finding = found(answer, True, rows, [], curves)
    # Whatever share of data and epochs was asked for: none of it is used.
    finding.figures.update(subject=f"{plan.spec.model}, one image of 32x32", note=None)
    return finding


def _answers(network: NetworkSummary) -> dict[str, Any]:
    return {
        "convolutions": network.convolutions,
        "trainable parameters": network.trainable_parameters,
        "gradients": network.gradients,
        "last convolution gives": _shape(_last_convolution(network)),
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


def _last_convolution(network: NetworkSummary) -> tuple[int, ...] | None:
    shapes = [layer.output_shape for layer in network.layers if layer.kind.startswith("Conv")]
    return shapes[-1] if shapes else None


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

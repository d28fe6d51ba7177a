"""The operations of a training's step: counted beside it, without a trace."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepscope.settings import RunSpec
from stepscope.train import device, training_setup
from stepscope.train.flop_counter import count_step, flops_of_step

NOWHERE = Path("nowhere")  # the built-in data is made, not read


def spec_of(model: str, **settings: object) -> RunSpec:
    return device.resolve(RunSpec(model=model, data="shapes", **settings))  # type: ignore[arg-type]


def counted(spec: RunSpec) -> dict[str, Any]:
    flops, reason = flops_of_step(spec, training_setup.build_model(spec), NOWHERE)
    assert flops is not None, reason
    return flops


def test_a_step_is_counted_by_phase_and_by_sample() -> None:
    spec = spec_of("lenet", batch_size=16, accumulate=2)
    flops = counted(spec)
    once = counted(spec_of("lenet", batch_size=16))
    assert flops["forward"] == 2 * once["forward"]  # of two batches
    assert flops["per_sample"] == once["per_sample"] == (once["forward"] + once["backward"]) / 16
    assert once["forward"] < once["backward"] < 2 * once["forward"]  # images have no gradient


def test_what_is_recomputed_counts_in_the_backward_pass() -> None:
    kept = counted(spec_of("resnet18", batch_size=4))
    again = counted(spec_of("resnet18", batch_size=4, checkpoint_activations=True))
    assert again["forward"] == kept["forward"]
    assert again["backward"] > kept["backward"] + 0.9 * kept["forward"]


def test_counting_leaves_the_network_and_the_random_numbers_as_they_are() -> None:
    spec = spec_of("resnet18", batch_size=4)
    model = training_setup.build_model(spec)
    model.eval()
    next(model.children()).train()
    before, chance = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    flops_of_step(spec, model, NOWHERE)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(chance, torch.get_rng_state())


class Asks(nn.Module):
    """A network that looks at its values."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.flatten(1) / max(images.max().item(), 1.0))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("spec", "model", "why"),
    [
        (RunSpec(memory_format="contiguous"), Asks(), "a step on the meta device failed"),
        (RunSpec(model="mobilebert", data="text"), nn.Identity(), "texts"),
        (RunSpec(data="folder"), nn.Identity(), "nowhere"),
    ],
    ids=["a network that needs values", "texts of any length", "data that is gone"],
)
def test_what_cannot_be_counted_has_a_reason(spec: RunSpec, model: nn.Module, why: str) -> None:
    flops, reason = flops_of_step(spec, model, NOWHERE)
    assert flops is None
    assert why in str(reason)


def test_a_shared_weight_and_a_large_batch_cost_no_memory() -> None:
    tied = nn.Linear(8, 8)
    work = count_step(nn.Sequential(tied, tied), torch.zeros(1, 8), 10**9, torch.contiguous_format)
    assert work.forward.flop == 2 * (2 * 10**9 * 64)


@pytest.mark.parametrize("model", ["lenet", "mobilenetv2"])
def test_the_count_agrees_with_multiply_adds_of_the_layers(model: str) -> None:
    from stepscope.models.model_summary import count_network

    spec = spec_of(model, batch_size=8)
    network = training_setup.build_model(spec)
    macs = count_network(network.to(memory_format=torch.contiguous_format), (3, 32, 32), model)[
        "macs"
    ]
    assert counted(spec)["forward"] == 2 * 8 * macs

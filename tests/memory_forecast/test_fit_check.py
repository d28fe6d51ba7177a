"""A forecast leaves no trace, finds remedies, and says how many workers fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepscope.data import dataset_registry
from stepscope.errors import OutOfMemoryError
from stepscope.memory_forecast.fit_check import (
    AIM,
    WORKERS_STAY_BELOW,
    check_fit,
    largest_batch,
    remedies,
    require_fit,
)
from stepscope.memory_forecast.forecast import ForecastInputs, forecast, probe_steps
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.train.activation_checkpointing import recomputing
from stepscope.train.device import resolve
from stepscope.train.training_setup import build_model

SHAPES = dataset_registry.find("shapes")


def state_of(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def test_weights_statistics_and_random_numbers_are_as_before():
    spec = resolve(validate({"model": "mobilenetv2", "batch_size": 4}))
    model = build_model(spec)
    before = [tensor.clone() for tensor in state_of(model)]
    random = torch.get_rng_state()
    check_fit(spec, model)
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(model), strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def total_with_batch(size: int, spec: RunSpec, inputs: ForecastInputs) -> int:
    return forecast(spec.model_copy(update={"batch_size": size}), inputs).total_bytes


@pytest.fixture(scope="module")
def too_large() -> tuple[RunSpec, ForecastInputs]:
    """Give a batch of 512 where there is room for 100: the tests' own process counts in both."""
    spec = resolve(validate({"model": "resnet18", "batch_size": 512}))
    inputs = ForecastInputs(probe_steps(spec, build_model(spec), SHAPES), SHAPES)
    room_bytes = total_with_batch(100, spec, inputs)
    return spec.model_copy(update={"memory_limit": room_bytes}), inputs


def test_a_larger_batch_takes_more_and_a_limit_finds_the_largest(too_large):
    spec, inputs = too_large
    totals = [total_with_batch(size, spec, inputs) for size in (8, 64, 512)]
    assert totals == sorted(totals)
    largest = largest_batch(spec, inputs)
    assert largest < 100  # there must be some air left
    aim_bytes = AIM * total_with_batch(100, spec, inputs)
    one_more = total_with_batch(largest + 1, spec, inputs)
    assert total_with_batch(largest, spec, inputs) <= aim_bytes < one_more


def test_remedies_take_less_and_the_accumulated_batch_stays_the_same(too_large):
    spec, inputs = too_large
    found = remedies(spec, inputs, None)
    assert found
    now = forecast(spec, inputs).total_bytes
    assert all(remedy["total_bytes"] < now for remedy in found)
    for remedy in found:
        changed = remedy["settings"]
        if "accumulate" in changed:
            assert changed["batch_size"] * changed["accumulate"] == 512


class FailsWhenRecomputed(nn.Sequential):
    """A network that finds no memory once one of its blocks is recomputed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if "forward" in vars(self[1]):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x


def test_a_network_that_fails_when_recomputed_has_the_other_remedies_and_the_reason():
    blocks = (nn.Sequential(nn.Linear(3072, 3072), nn.ReLU()) for _ in range(2))
    model = FailsWhenRecomputed(nn.Flatten(), *blocks, nn.Linear(3072, 10))
    spec = resolve(validate({"batch_size": 512, "memory_limit": "200MiB"}))
    answer = check_fit(spec, model).to_json()
    assert answer["fits"] is False
    assert "--checkpoint-activations could not be tried" in answer["remedies_reason"]
    assert "CUDA out of memory" in answer["remedies_reason"]
    assert [list(remedy["settings"]) for remedy in answer["remedies"]][:1] == [["batch_size"]]


def test_recomputing_for_a_while_leaves_the_network_as_it_was():
    model = build_model(resolve(validate({"model": "resnet18"})))
    with recomputing(model) as blocks:
        assert blocks == 4  # the stages
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_compiled_network_is_still_compiled_after_a_forecast():
    graphs = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    model: nn.Module = torch.compile(plain, backend=compiler)
    checked = check_fit(resolve(validate({"batch_size": 4})), model)
    assert checked.bill is not None, checked.reason
    assert not graphs
    model(torch.zeros(4, 3, 32, 32))
    assert len(graphs) == 1


# Large batches made ahead: what the workers hold is then far more than this process drifts by.
MANY = {"samples": 4000, "batch_size": 256, "workers": 4, "prefetch": 8, "threads": 1}


@pytest.fixture(scope="module")
def checked():
    spec = resolve(validate({**MANY, "device": "cpu"}))
    model = build_model(spec)
    return lambda limit: check_fit(spec.model_copy(update={"memory_limit": limit}), model)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_limit_between_training_and_workers_holds_some_of_them_and_is_no_refusal(checked):
    free = checked(None)
    assert free.to_json()["workers_that_fit"] == 4
    items = free.bill.items
    of_workers = items["workers"].bytes + items["prefetch"].bytes
    alone = free.bill.total_bytes - of_workers
    some = checked(round((alone + 0.6 * of_workers) / WORKERS_STAY_BELOW))
    assert 0 < some.workers_that_fit < 4
    require_fit(some)
    none = checked(round((alone + 0.1 * of_workers) / WORKERS_STAY_BELOW))
    assert none.workers_that_fit == 0
    require_fit(none)
    too_little = checked(alone // 2)
    assert too_little.workers_that_fit is None
    with pytest.raises(OutOfMemoryError, match="--force starts it"):
        require_fit(too_little)

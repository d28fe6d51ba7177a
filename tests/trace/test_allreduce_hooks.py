"""The allreduce of DistributedDataParallel, observed without taking part in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from installed_hooks import events_of, watched
from scripted_clock import ScriptedClock, ScriptedDevice
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from stepscope.trace.allreduce_hooks import ON_DEVICE
from stepscope.trace.detect.row_builder import CommunicationTime
from stepscope.trace.event_buffer import HookState

ALL_TIME = (0, 2**63)


@pytest.fixture(scope="module", autouse=True)
def alone_in_a_group() -> Iterator[None]:
    """Let this process be all ranks there are: gradients still go through the reducer."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def network(**options: Any) -> DistributedDataParallel:
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return DistributedDataParallel(layers, **options)


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.randn(3, 4)).sum()
    return loss


def communication(hooks: HookState) -> float | None:
    return hooks.allreduce.communication.between(*ALL_TIME)


def backward_s(hooks: HookState) -> float:
    times_ns = [time_ns for _, time_ns, *_ in events_of(hooks)]
    return (max(times_ns) - min(times_ns)) / 1e9


@pytest.mark.parametrize(
    "options",
    [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_the_end_of_a_backward_pass_is_exchange(options: dict[str, Any]) -> None:
    model = network(**options)
    with watched() as hooks:
        for _ in range(3):
            loss_of(model).backward()
            known = communication(hooks)
            assert known is not None
            assert 0 <= known < backward_s(hooks)
    assert hooks.allreduce.reason is None
    assert hooks.allreduce.own_ns > 0


def test_a_graph_that_is_said_to_be_static_is_known_from_its_second_pass_on() -> None:
    model = network(static_graph=True)
    with watched() as hooks:
        loss_of(model).backward()
        assert communication(hooks) is None
        loss_of(model).backward()
        assert communication(hooks) is not None


def test_a_pass_that_only_adds_up_exchanges_nothing() -> None:
    model = network()
    with watched() as hooks:
        loss_of(model).backward()
        assert communication(hooks) is not None
        with model.no_sync():
            loss_of(model).backward()
        assert communication(hooks) is None
        loss_of(model).backward()
        assert communication(hooks) is not None


def test_of_two_networks_only_the_one_that_went_backward_exchanged() -> None:
    one, other = network(), network()
    with watched() as hooks:
        first, second = loss_of(one), loss_of(other)
        first.backward()
        assert communication(hooks) is not None
        assert len(hooks.allreduce.prepared) == 1
        second.backward()
        assert communication(hooks) is not None
        assert not hooks.allreduce.prepared


def test_a_hook_of_the_script_is_called_and_its_gradients_are_taken() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model, called = network(), []

    def hook(state: Any, bucket: Any) -> Any:
        called.append(bucket.index())
        return allreduce_hook(None, bucket).then(lambda future: future.value() * 0 + 7)

    hook.__annotations__.clear()
    with watched() as hooks:
        model.register_comm_hook(None, hook)
        loss_of(model).backward()
    assert called
    assert communication(hooks) is not None
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and bool((gradient == 7).all()) for gradient in gradients)


def test_what_is_trained_is_the_same_to_the_bit_as_without_us() -> None:
    def trained() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = network()
        loss_of(model).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return dict(model.state_dict())

    without = trained()
    with watched():
        within = trained()
    assert all(torch.equal(without[name], within[name]) for name in without)


def test_without_it_nothing_is_known_and_nothing_is_said() -> None:
    with watched() as hooks:
        loss_of(nn.Linear(4, 2)).backward()
    assert communication(hooks) is None
    assert hooks.allreduce.reason is None


def test_a_device_that_works_on_its_own_is_not_asked() -> None:
    model = network()
    with watched() as hooks:
        loss_of(model)
        hooks.allreduce.prepared.clear()
        hooks.buffer.queue = ScriptedDevice(ScriptedClock())
        loss_of(model)
        assert not hooks.allreduce.prepared
    assert hooks.allreduce.reason == ON_DEVICE


def test_steps_take_the_exchanges_of_their_own_time() -> None:
    communication = CommunicationTime()
    for end_ns, communication_ns in [(5, 1), (15, 2), (18, 3), (25, 4)]:
        communication.add(end_ns, communication_ns)
    assert communication.between(10, 20) == pytest.approx(5e-9), (
        "what came before any step is nobody's"
    )
    assert communication.between(20, 24) is None
    assert communication.between(24, 30) == pytest.approx(4e-9)

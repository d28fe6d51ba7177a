"""What hooks record of backward passes and updates: the loss, and how many steps there were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from installed_hooks import data, details, events_of, kinds, model, watched
from torch import optim
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.data import DataLoader

from stepscope.trace import event_buffer as e
from stepscope.trace.detect.spans import value_of


def test_an_optimiser_that_raises_is_over_all_the_same() -> None:
    with watched() as hooks:
        net = model()
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def closure() -> float:
            raise ArithmeticError("not a number")

        with pytest.raises(ArithmeticError, match="not a number"):
            optimizer.step(closure)
        assert hooks.in_step == 0
        optimizer.step()
    assert kinds(hooks)["STEP"] == 2


def test_a_scaler_with_its_optimiser_is_one_update_and_its_loss_is_the_unscaled_one() -> None:
    with watched() as hooks:
        net = model()
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = net(torch.ones(2, 4)).pow(2).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert hooks.steps == 1
    [recorded] = details(hooks, e.BACKWARD_DONE)
    assert recorded == loss.item()


def test_what_a_backward_pass_takes_from_an_iterator_is_left_to_it() -> None:
    one, two = (torch.ones((), requires_grad=True) for _ in range(2))
    with watched() as hooks:
        torch.autograd.backward(each * 2 for each in (one, two))
    assert (one.grad, two.grad) == (torch.tensor(2.0), torch.tensor(2.0))
    assert kinds(hooks)["BACKWARD_DONE"] == 1


def test_a_backward_pass_that_is_traced_has_no_loss_and_no_trouble() -> None:
    def gradient(values: torch.Tensor) -> torch.Tensor | None:
        values = values.detach().requires_grad_()
        (values * 2).sum().backward()
        return values.grad

    with watched() as hooks:
        traced = make_fx(gradient)(torch.ones(3))
    assert traced(torch.ones(3)).tolist() == [2.0] * 3
    [recorded] = details(hooks, e.BACKWARD_DONE)
    assert recorded is None


def test_only_one_real_number_is_a_loss() -> None:
    root = torch.ones(3, requires_grad=True)
    with watched() as hooks:
        for each in (root.sum(), root * 2, root.sum(), root.sum().to(torch.complex64)):
            each.backward(torch.ones_like(each))
        torch.autograd.backward(
            [root.sum().to(torch.complex64)], [torch.ones((), dtype=torch.cfloat)]
        )
    recorded = details(hooks, e.BACKWARD_DONE)
    assert recorded == [3.0, None, 3.0, None, None]


def test_steps_are_counted_and_not_the_updates_of_several_optimisers() -> None:
    with watched() as hooks:
        net = model()
        both = [optim.SGD([each], lr=0.1) for each in net.parameters()]
        for _ in range(3):  # without a loader
            net(torch.ones(2, 4)).sum().backward()
            for optimizer in both:
                optimizer.step()
        assert hooks.steps == 3
        for _ in DataLoader(data(), batch_size=6):
            for optimizer in reversed(both):
                optimizer.step()
        assert hooks.steps == 3 + len(data()) // 6


def _steps(*, loader: bool, rounds: list[list[str]]) -> int:
    """Count the steps of a loop in which these optimisers update, one round after the other."""
    shared, apart = model(), model()
    with watched() as hooks:
        optimizers: dict[str, optim.Optimizer] = {
            "first": optim.Adam(shared.parameters()),
            "same weights": optim.SGD(shared.parameters(), lr=0.1),
            "other weights": optim.SGD(apart.parameters(), lr=0.1),
        }
        batches = iter(DataLoader(data(4 * len(rounds)), batch_size=4))
        for names in rounds:
            if loader:
                next(batches)
            for name in names:
                optimizers[name].step()
        del batches
    return hooks.steps


def test_an_optimiser_of_the_same_weights_takes_over_and_one_of_others_steps_beside() -> None:
    then = [["first"]] * 4 + [["same weights"]] * 3
    assert _steps(loader=False, rounds=then) == _steps(loader=True, rounds=then) == 7
    now_and_then = [["first"], ["first"], ["first", "other weights"]] * 3
    assert _steps(loader=False, rounds=now_and_then) == 9
    assert _steps(loader=True, rounds=now_and_then) == 9


def test_an_optimiser_that_trains_something_more_does_not_take_over() -> None:
    """As an actor with a head of its own, which is updated every second time."""
    encoder, critic, actor = model(), model(), model()
    with watched() as hooks:
        first = optim.Adam([*encoder.parameters(), *critic.parameters()])
        second = optim.Adam([*encoder.parameters(), *actor.parameters()])
        for number in range(20):
            first.step()
            if number % 2:
                second.step()
    assert hooks.steps == 20


def test_an_optimiser_that_keeps_its_weights_in_its_own_way_steps_beside_others() -> None:
    class Own(optim.SGD):
        def step(self, closure: None = None) -> None:
            pass

    with watched() as hooks:
        first, own = optim.SGD(model().parameters(), lr=0.1), Own(model().parameters(), lr=0.1)
        own.param_groups = [{"weights": []}]
        for _ in range(3):
            first.step()
        own.step()
    assert hooks.steps == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ((None, True), {}),
        ((None, True, False, None, None), {}),
        ((), {"retain_graph": True, "inputs": None}),
    ],
)
def test_a_backward_pass_is_passed_on_as_it_was_asked_for(arguments: Any) -> None:
    positional, named = arguments
    with watched() as hooks:
        loss = model()(torch.ones(2, 4)).sum()
        torch.autograd.backward(loss, *positional, **named)
    assert kinds(hooks)["BACKWARD_DONE"] == 1


def test_somebody_elses_backward_pass_is_called_as_torch_calls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = torch.autograd.backward
    monkeypatch.setattr(
        torch.autograd,
        "backward",
        lambda tensors, *args, inputs=None, **more: theirs(tensors, *args, inputs=inputs, **more),
    )
    with watched() as hooks:
        model()(torch.ones(2, 4)).sum().backward()
    assert kinds(hooks)["BACKWARD_DONE"] == 1


def test_optimisers_of_the_same_weights_that_step_beside_each_other_make_one_step() -> None:
    """As the two of an adversarial autoencoder, which both train its encoder."""
    both = [["first", "other weights", "same weights"]] * 5
    assert _steps(loader=False, rounds=both) == _steps(loader=True, rounds=both) == 5


def test_an_optimiser_that_passes_its_steps_on_is_not_taken_over_from() -> None:
    class Outer(optim.Optimizer):
        def __init__(self, inner: optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: None = None) -> None:
            self.inner.step()

    with watched() as hooks:
        outer = Outer(optim.SGD(model().parameters(), lr=0.1))
        made = kinds(hooks)["MADE"]
        for _ in range(5):
            outer.step()
    assert (hooks.steps, kinds(hooks)["MADE"]) == (5, made)


def test_a_gradient_forgotten_in_the_backward_pass_is_the_optimisers_work() -> None:
    with watched() as hooks:
        net = model()
        for weight in net.parameters():
            optimizer = optim.SGD([weight], lr=0.1)
            weight.register_post_accumulate_grad_hook(lambda _, own=optimizer: own.zero_grad())
        net(torch.ones(2, 4)).sum().backward()
    assert kinds(hooks)["ZERO"] == len(list(net.parameters()))


class OwnTensor(torch.Tensor):
    """A user's tensor class: the cost of reading it is unknown."""


def test_losses_of_one_backward_pass_are_added_up() -> None:
    net = model()
    with watched() as hooks:
        one, other = (net(torch.ones(2, 4)).sum() for _ in range(2))
        torch.autograd.backward([one, other])
        torch.autograd.backward([net(torch.ones(2, 4))[0, 0]])
        torch.autograd.backward(list(net(torch.ones(2, 4))), [torch.ones(3), torch.ones(3)])
    both, single, none = (each for kind, *_, each, _ in events_of(hooks) if kind == e.BACKWARD_DONE)
    assert value_of(both) == pytest.approx((one + other).item())
    assert isinstance(single, float)
    assert none is None, "vectors are no losses"


def test_a_loss_that_is_read_later_does_not_keep_its_graph() -> None:
    with watched() as hooks:
        loss = model()(torch.ones(2, 4)).sum().as_subclass(OwnTensor)
        loss.backward()
        [recorded] = details(hooks, e.BACKWARD_DONE)
        assert recorded.args[1].grad_fn is None
        assert recorded() == loss.item()

"""Every layer gets its own time, whatever the network does, and the network never notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scripted_clock import MS, ScriptedClock, ScriptedDevice
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepscope.meter import layer_timer
from stepscope.meter.layer_timer import LayerWindow


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def measure(model: nn.Module, step: Callable[[], object], steps: int = 1):
    window = LayerWindow([("", model)])
    window.open()
    for _ in range(steps):
        step()
    window.close()
    return {row["name"]: row for row in window.layers(steps)}


def times_ms(seen) -> dict[str, object]:
    """Give the milliseconds of the forward and the backward pass of each layer."""
    return {
        name: pytest.approx((row["forward_s"] * 1e3, row["backward_s"] * 1e3))
        for name, row in seen.items()
    }


def forward_and_backward(model: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    return lambda: model(*inputs).sum().backward()


# --- time -----------------------------------------------------------------------------------------


class Sleeper(nn.Module):
    """Take a time that is known, in both passes, on a clock that moves only when told to."""

    def __init__(self, clock: ScriptedClock, forward_ms: float, backward_ms: float, device=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.forward_ms, self.backward_ms = forward_ms, backward_ms
        self.clock, self.device = clock, device

    def take(self, milliseconds: float) -> None:
        self.clock.pass_ms(milliseconds if self.device is None else 0.5)
        if self.device is not None:
            self.device.work(milliseconds)

    def forward(self, x: Tensor) -> Tensor:
        self.take(self.forward_ms)
        return Slow.apply(x * self.weight, self)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, sleeper: Sleeper) -> Tensor:
        ctx.sleeper = sleeper
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.sleeper.take(ctx.sleeper.backward_ms)
        return gradient, None


class Parent(nn.Module):
    """Work of its own before, between and after its two children."""

    def __init__(self, clock: ScriptedClock, device=None):
        super().__init__()
        self.own = [Sleeper(clock, ms, ms * 2, device) for ms in (1, 2, 4)]  # no modules of its own
        self.first = Sleeper(clock, 10, 20, device)
        self.second = Sleeper(clock, 100, 300, device)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.own[0].forward(x))
        x = self.second(self.own[1].forward(x))
        return self.own[2].forward(x)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ScriptedClock:
    scripted = ScriptedClock()
    monkeypatch.setattr(layer_timer, "now_ns", scripted)
    return scripted


def test_a_layers_time_is_its_own_without_that_of_its_children(clock):
    model = Parent(clock)
    seen = measure(model, forward_and_backward(model, torch.ones(2)), steps=3)
    assert list(seen) == ["second", "first", "(Parent)"], "the largest first"
    assert times_ms(seen) == {"second": (100, 300), "first": (10, 20), "(Parent)": (7, 14)}
    assert {row["calls"] for row in seen.values()} == {1}


def test_time_outside_every_module_is_nobodys(clock):
    model, loss = Sleeper(clock, 10, 20), Sleeper(clock, 1000, 1000)

    def step() -> None:
        clock.pass_ms(500)
        loss.forward(model(torch.ones(2))).sum().backward()
        clock.pass_ms(500)  # the optimiser

    seen = measure(model, step, steps=2)
    assert times_ms(seen) == {"(Sleeper)": (10, 20)}


def test_on_an_asynchronous_device_its_own_time_counts_and_nothing_waits(clock):
    device = ScriptedDevice(clock)
    model = Parent(clock, device)
    window = LayerWindow([("", model)], queue=device)
    window.open()
    forward_and_backward(model, torch.ones(2))()
    window.close()
    assert device.now_ms == 0, "nobody waited for the device"
    seen = {row["name"]: row for row in window.layers(1)}
    assert device.now_ms > 400
    assert clock.now < 10 * MS, "the host only issued the work"
    assert times_ms(seen)["second"] == (100, 300)
    assert seen["first"]["backward_s"] == pytest.approx(0.020)
    assert seen["(Parent)"]["backward_s"] == pytest.approx(0.014)


def test_frozen_layers_and_calls_without_gradients_have_no_backward_time(clock):
    model = nn.Sequential(Sleeper(clock, 1, 2), Sleeper(clock, 3, 4))
    model[0].requires_grad_(False)

    def step() -> None:
        model(torch.ones(2)).sum().backward()
        with torch.no_grad():
            model(torch.ones(2))

    seen = measure(model, step)
    assert times_ms(seen) == {"(Sequential)": (0, 0), "0": (2, 0), "1": (6, 4)}
    assert seen["0"]["calls"] == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputing_is_backward_time_of_the_layer_and_no_call(clock, reentrant):
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Sleeper(clock, 10, 100), nn.Tanh(), Sleeper(clock, 20, 200))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model = nn.Sequential(Recomputed(), Sleeper(clock, 1, 2))
    seen = measure(model, forward_and_backward(model, torch.ones(2, requires_grad=True)))
    took_ms = times_ms(seen)
    assert (took_ms["0.inner.0"], took_ms["0.inner.2"]) == ((10, 110), (20, 220))
    assert took_ms["1"] == (1, 2)
    assert {row["calls"] for row in seen.values()} == {1}


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        raise ArithmeticError


class Picky(Sleeper):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 3:
            raise ArithmeticError
        return super().forward(x)


@pytest.mark.parametrize("fails_in", ["forward", "backward"])
def test_a_pass_that_failed_leaves_nothing_to_the_next_step(clock, fails_in):
    model = nn.Sequential(Picky(clock, 10, 20))
    bad = torch.ones(3 if fails_in == "forward" else 2, requires_grad=True)

    def step() -> None:
        with pytest.raises(ArithmeticError):
            model(Broken.apply(bad)).sum().backward()
        clock.pass_ms(1000)
        forward_and_backward(model, torch.ones(2))()
        clock.pass_ms(1000)

    passes = 1 if fails_in == "forward" else 2
    seen = measure(model, step)
    assert times_ms(seen) == {"0": (10 * passes, 20 * passes), "(Sequential)": (0, 0)}


# --- networks of every kind -----------------------------------------------------------------------


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, *, x: Tensor) -> dict[str, object]:
        return {"scores": [self.head(x).relu_()], "note": "not a tensor"}


def test_tensors_are_found_in_named_arguments_and_in_whatever_a_module_returns():
    model = Tower()
    seen = measure(model, lambda: model(x=torch.randn(8, 4))["scores"][0].sum().backward())
    assert seen["(Tower)"]["bytes"] == 4 * (8 * 4 + 8 * 2)
    assert seen["head"]["backward_s"] > 0
    assert seen["(Tower)"]["backward_s"] > 0, "its relu"


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.relu_(self.layer(x))
        return x


def test_a_layer_that_is_called_several_times_is_added_up():
    model = Shared()
    model.unused = nn.Linear(1, 1)
    seen = measure(model, forward_and_backward(model, torch.randn(8, 4)), steps=2)
    assert "unused" not in seen
    assert seen["layer"]["calls"] == 3
    assert seen["layer"]["multiply_adds"] == 3 * 8 * 4 * 4
    assert seen["layer"]["bytes"] == 3 * 4 * (8 * 4 + 8 * 4 + 4 * 4 + 4)


def test_figures_of_uneven_steps_are_means():
    model = nn.Linear(3, 1)
    sizes = iter((1, 2))
    seen = measure(model, lambda: model(torch.ones(next(sizes), 3)), steps=2)
    assert seen["(Linear)"]["multiply_adds"] == pytest.approx(4.5)


def test_several_roots_have_their_prefixes_and_a_shared_layer_its_first_name():
    shared = nn.Linear(2, 2)
    generator, critic = nn.Sequential(shared), nn.Sequential(shared, nn.Linear(2, 1))
    window = LayerWindow([("generator", generator), ("critic", critic)])
    window.open()
    critic(generator(torch.ones(1, 2))).sum().backward()
    window.close()
    names = {row["name"]: row["calls"] for row in window.layers(1)}
    assert names == {"generator": 1, "generator.0": 2, "critic": 1, "critic.1": 1}


def test_a_compiled_module_is_one_layer_and_is_not_compiled_again():
    passes = []

    def compiler(graph, inputs):
        passes.append(graph)
        return graph.forward

    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.Sequential(torch.compile(inner, backend=compiler, fullgraph=True), nn.Linear(4, 2))
    step = forward_and_backward(model, torch.ones(2, 4))
    step()
    assert set(measure(model, step)) == {"(Sequential)", "0", "1"}
    step()
    assert len(passes) == 1


def test_hooks_are_left_out_of_what_is_compiled_meanwhile():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
    measure(model, lambda: compiled(torch.ones(2, 4)).backward())
    assert model[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_takes_no_hooks_is_its_callers():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    in_place = nn.Linear(4, 4)
    in_place.compile(backend="eager")
    model = nn.Sequential(scripted, in_place, nn.ReLU())
    assert set(measure(model, forward_and_backward(model, torch.ones(2, 4)))) == {
        "(Sequential)",
        "2",
    }


# --- multiply-adds and bytes ----------------------------------------------------------------------


def test_an_embedding_moves_bytes_and_multiplies_nothing():
    module = nn.Embedding(10, 4)
    [row] = measure(module, lambda: module(torch.arange(3))).values()
    assert row["multiply_adds"] == 0
    assert row["bytes"] == 3 * 8 + 3 * 4 * 4 + 10 * 4 * 4


def test_what_a_user_class_computes_is_unknown_and_not_zero():
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x.T

    own = Own()
    assert measure(own, lambda: None) == {}
    [row] = measure(own, lambda: own(torch.ones(2, 2))).values()
    assert (row["kind"], row["multiply_adds"]) == ("Own", None)

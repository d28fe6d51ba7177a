"""Weights changed without an optimiser of torch: such updates are steps too, and marked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from installed_hooks import kinds, watched
from simulated_loop import Sheet
from stepscope_command import Answer, Stepscope, closes
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from stepscope.meter.clock import other_clock_ns
from stepscope.records.run_reader import load_run
from stepscope.trace import event_buffer as e
from stepscope.trace.detect.steps import StepDetector

BATCHES, BATCH_SIZE, EPOCHS = 8, 4, 2
UPDATES, SAMPLES = EPOCHS * BATCHES, EPOCHS * BATCHES * BATCH_SIZE
DATA = TensorDataset(torch.randn(BATCHES * BATCH_SIZE, 6), torch.arange(BATCHES * BATCH_SIZE) % 3)


def detected(script: Callable[[], object]) -> Sheet:
    """What is found in a script that runs with the hooks."""
    with watched() as hooks:
        hooks.buffer.record(e.CLOCKS, None, other_clock_ns())
        script()
        if hooks.weights is not None:
            hooks.weights.look(at_end=True)
    sheet = Sheet()
    detector = StepDetector(sheet, 0)
    detector.take(hooks.buffer.flush())
    detector.finish()
    for row in sheet.rows:
        assert sum(row.spent) == row.step_ns
    return sheet


def network(outputs: int = 3, inputs: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(EPOCHS):
        yield from DataLoader(DATA, batch_size=BATCH_SIZE)


def train(model: nn.Module, change: Callable[[nn.Parameter], object]) -> None:
    for images, labels in batches():
        cross_entropy(model(images), labels).backward()
        for weight in model.parameters():
            change(weight)
            weight.grad = None


def gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def add_to_data(weight: nn.Parameter) -> None:
    weight.data.add_(gradient(weight), alpha=-0.1)


def replace_data(weight: nn.Parameter) -> None:
    weight.data = weight.data - 0.1 * gradient(weight)


@torch.no_grad()
def subtract(weight: nn.Parameter) -> None:
    weight -= 0.1 * gradient(weight)


@pytest.mark.parametrize("change", [add_to_data, replace_data, subtract])
def test_each_change_by_hand_is_a_step(change: Callable[[nn.Parameter], object]) -> None:
    sheet = detected(lambda: train(network(), change))
    assert sheet.samples == [BATCH_SIZE] * UPDATES
    assert [timing.steps for timing in sheet.of("train")] == [BATCHES] * EPOCHS


def test_a_script_without_updates_has_no_steps() -> None:
    assert detected(lambda: train(network(), lambda weight: None)).rows == []


def test_an_optimiser_that_inherits_from_nothing_makes_steps() -> None:
    class Momentum:
        def __init__(self, weights: Iterator[nn.Parameter]) -> None:
            self.weights = list(weights)
            self.momenta = [torch.zeros_like(each) for each in self.weights]

        @torch.no_grad()
        def step(self) -> None:
            for weight, momentum in zip(self.weights, self.momenta, strict=True):
                momentum.mul_(0.9).add_(gradient(weight))
                weight.add_(momentum, alpha=-0.1)

        def zero_grad(self) -> None:
            for weight in self.weights:
                weight.grad = None

    def script() -> None:
        model = network()
        optimizer = Momentum(model.parameters())
        for images, labels in batches():
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()

    assert detected(script).samples == [BATCH_SIZE] * UPDATES


@pytest.mark.parametrize("change", [add_to_data, subtract])
def test_gradients_accumulated_over_four_batches_are_one_step(
    change: Callable[[nn.Parameter], object],
) -> None:
    def script() -> None:
        model = network()
        for number, (images, labels) in enumerate(batches(), start=1):
            (cross_entropy(model(images), labels) / 4).backward()
            if number % 4 == 0:
                for weight in model.parameters():
                    change(weight)
                    weight.grad = None

    assert detected(script).samples == [4 * BATCH_SIZE] * (UPDATES // 4)


@pytest.mark.parametrize("change", [add_to_data, subtract])
def test_both_networks_of_a_gan_make_one_step_per_batch(
    change: Callable[[nn.Parameter], object],
) -> None:
    def script() -> None:
        generator, critic = network(6, inputs=2), network(1)
        for images, _ in batches():
            fake = generator(torch.randn(len(images), 2))
            critic.zero_grad()
            (critic(fake.detach()).mean() - critic(images).mean()).backward()
            for weight in critic.parameters():
                change(weight)
            generator.zero_grad()
            (-critic(fake).mean()).backward()
            for weight in generator.parameters():
                change(weight)

    assert detected(script).samples == [BATCH_SIZE] * UPDATES


@pytest.mark.parametrize("keeps_the_first", [True, False])
def test_weights_replaced_with_torch_func_make_steps(keeps_the_first: bool) -> None:
    model = network()  # it holds on to the first weights if they are its own

    def loss_of(weights: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (images,)), labels)

    def script() -> None:
        weights: dict[str, Tensor] = dict(model.named_parameters())
        if not keeps_the_first:
            weights = {name: weight.detach().clone() for name, weight in weights.items()}
        for images, labels in batches():
            gradients, _ = grad_and_value(loss_of)(weights, images, labels)
            weights = {name: weights[name] - 0.1 * gradients[name] for name in weights}

    sheet = detected(script)
    assert sheet.samples == [BATCH_SIZE] * UPDATES
    assert None not in [row.loss for row in sheet.rows]


def test_gradients_of_each_sample_with_vmap_make_steps() -> None:
    model = network()

    def loss_of(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (image[None],)), label[None])

    def script() -> None:
        for images, labels in batches():
            weights = {name: weight.detach() for name, weight in model.named_parameters()}
            each = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, images, labels)
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight -= 0.1 * each[name].mean(0)

    assert detected(script).samples == [BATCH_SIZE] * UPDATES


def test_a_gradient_penalty_is_no_backward_pass_of_its_own() -> None:
    def script() -> None:
        critic = network(1)
        for images, _ in batches():
            inputs = images.clone().requires_grad_()
            (slope,) = torch.autograd.grad(critic(inputs).sum(), inputs, create_graph=True)
            (critic(images).mean() + slope.square().mean()).backward()
            for weight in critic.parameters():
                add_to_data(weight)
                weight.grad = None

    assert detected(script).samples == [BATCH_SIZE] * UPDATES


@pytest.mark.parametrize("replaces", [True, False])
def test_tensors_without_a_module_are_weights_too(replaces: bool) -> None:
    def script() -> None:
        images, targets = torch.randn(8, 4), torch.randn(8, 2)
        weight = torch.randn(4, 2, requires_grad=True)
        for _ in range(20):
            (slope,) = torch.autograd.grad(mse_loss(images @ weight, targets), weight)
            if replaces:
                weight = (weight - 0.1 * slope).detach().requires_grad_()
            else:
                weight.data -= 0.1 * slope

    assert len(detected(script).rows) == 20


def test_an_evaluation_between_updates_without_a_loader_is_taken_out() -> None:
    def script() -> None:
        images, labels = DATA.tensors
        model = network()
        for _ in range(5):
            cross_entropy(model(images), labels).backward()
            for weight in model.parameters():
                add_to_data(weight)
                weight.grad = None
            model.eval()
            with torch.no_grad():
                model(images)
            model.train()

    sheet = detected(script)
    assert sheet.samples == [len(DATA)] * 5
    assert sheet.splits.count("test") == 5


def test_the_last_update_before_a_loop_is_left_belongs_to_its_epoch() -> None:
    def script() -> None:
        model = network()
        for _ in range(EPOCHS):
            for number, (images, labels) in enumerate(DataLoader(DATA, batch_size=BATCH_SIZE), 1):
                cross_entropy(model(images), labels).backward()
                for weight in model.parameters():
                    add_to_data(weight)
                if number == 3:
                    break

    sheet = detected(script)
    assert sheet.samples == [BATCH_SIZE] * 3 * EPOCHS
    assert [timing.steps for timing in sheet.of("train")] == [3] * EPOCHS


@pytest.mark.parametrize("is_made_before", [True, False])
def test_beside_an_optimiser_nothing_is_inferred(is_made_before: bool) -> None:
    """An average of the weights is kept by hand, and so is a part of them."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = copy.deepcopy(model)

    def script() -> None:
        made = optimizer if is_made_before else torch.optim.SGD(model.parameters(), lr=0.1)
        for images, labels in batches():
            made.zero_grad()
            cross_entropy(model(images), labels).backward()
            made.step()
            for kept, weight in zip(average.parameters(), model.parameters(), strict=True):
                kept.data.mul_(0.9).add_(weight.data, alpha=0.1)
                weight.data.clamp_(-1, 1)

    assert detected(script).samples == [BATCH_SIZE] * UPDATES


def test_the_hooks_of_the_watch_are_gone_once_an_optimiser_is_made() -> None:
    original = torch.autograd.grad
    with watched() as hooks:
        assert torch.autograd.grad is not original
        torch.optim.SGD(network().parameters(), lr=0.1)
        assert torch.autograd.grad is original
        assert hooks.weights is None
        assert kinds(hooks)["MADE"] == 1


BY_HAND = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
for epoch in range(2):
    for images, labels in DataLoader(data, batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)
    with torch.no_grad():
        for images, labels in DataLoader(data, batch_size=16):
            model(images)
print("loss", loss.item())
"""


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    folder = tmp_path_factory.mktemp("by_hand")
    (folder / "train.py").write_text(BY_HAND, encoding="utf-8")
    return Stepscope(folder)("trace", "--json", "train.py"), folder


def test_a_trace_says_that_its_steps_are_inferred(by_hand: tuple[Answer, Path]) -> None:
    answer, folder = by_hand
    assert answer.code == 0, answer.err
    run = load_run(folder / answer.json["path"])
    assert (run.summary["steps"], run.summary["samples"]) == (16, 128)
    assert run.epochs["split"] == ["train", "test"] * 2
    assert closes(run)
    assert run.summary["steps_inferred"] is True
    assert "inferred" in run.summary["absent"]["optimizer_s"]


def test_the_report_says_that_its_steps_are_inferred(by_hand: tuple[Answer, Path]) -> None:
    answer, folder = by_hand
    printed = Stepscope(folder)("report", answer.json["path"])
    assert "steps are inferred" in " ".join(printed.out.split())


def test_max_steps_ends_a_script_without_an_optimiser(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BY_HAND, encoding="utf-8")
    answer = Stepscope(tmp_path)("trace", "--json", "--max-steps", "5", "train.py")
    assert answer.code == 0, answer.err
    assert answer.json["summary"]["steps"] == 5
    assert "loss" not in answer.err

"""A network that is looked at layer by layer computes the same, and nothing is left in it."""

from __future__ import annotations

import copy
import io
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepscope.meter.layer_timer import LayerWindow
from stepscope.models import registry


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def hooks_of(model: nn.Module) -> list[object]:
    kept = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    more = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    every = (*kept, *more, "_forward_hooks_always_called")
    return [dict(getattr(module, name)) for module in model.modules() for name in every]


class Everything(nn.Module):
    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.stem = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 3, padding=1))
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 1), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Conv2d(8, 8, 1)
        )
        self.rows = nn.LSTM(8, 8, bidirectional=True, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        shortcut = x
        x = checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)
        x += shortcut
        x, _ = self.rows(x.mean(dim=2).transpose(1, 2))
        x, _ = self.attention(x, x, value=x)
        return self.frozen(self.head(x[:, -1]))


def losses(open_at: int | None, recompute: bool) -> tuple[list[float], nn.Module]:
    torch.manual_seed(1)
    model = Everything(recompute)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    window = LayerWindow([("", model)])
    found = []
    for step in range(6):
        if step == open_at:
            window.open()
        loss = F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.arange(4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        if open_at is not None and step == open_at + 2:
            window.close()
    return found, model


@pytest.mark.parametrize("recompute", [False, True])
def test_losses_and_weights_are_the_same_to_the_bit(recompute):
    without, plain = losses(None, recompute)
    looked_at, model = losses(2, recompute)
    assert looked_at == without
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_no_hook_is_left_in_any_module_and_those_of_others_stay():
    model = registry.build("lenet", classes=10)
    model.classifier.register_forward_hook(lambda *_: None)
    before = hooks_of(model)
    window = LayerWindow([("", model)])
    window.open()
    assert hooks_of(model) != before
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    window.close()
    assert hooks_of(model) == before
    window.close()  # again does no harm


def test_no_hook_is_left_where_opening_failed_half_way():
    class Closed(nn.Linear):
        def register_forward_hook(self, *args, **named):
            raise RuntimeError("no hooks here")

    model = nn.Sequential(nn.Linear(1, 1), Closed(1, 1), nn.Linear(1, 1))
    before = hooks_of(model)
    with pytest.raises(RuntimeError, match="no hooks here"):
        LayerWindow([("", model)]).open()
    assert hooks_of(model) == before


def test_a_graph_that_outlives_the_window_runs_without_it():
    model = nn.Linear(2, 2)
    window = LayerWindow([("", model)])
    window.open()
    output = model(torch.ones(1, 2))
    window.close()
    before = window.layers(1)
    output.sum().backward()
    assert model.weight.grad is not None
    assert window.layers(1) == before


def test_no_graph_lives_longer_for_being_measured():
    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.noted = nn.Identity()
            notes.append(weakref.ref(ctx.noted))
            return x.clone()

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Noted.apply(x)

    notes: list[weakref.ref[nn.Identity]] = []
    model = Model()
    window = LayerWindow([("", model)])
    window.open()
    output = model(torch.ones(1, requires_grad=True))
    assert notes[0]() is not None
    del output
    assert notes[0]() is None
    window.close()


def test_a_network_copied_or_saved_meanwhile_works_and_is_not_measured():
    model = nn.Sequential(nn.Linear(2, 2))
    window = LayerWindow([("", model)])
    window.open()
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    for other in (twin, read):
        assert torch.equal(other(torch.ones(1, 2)), model[0].forward(torch.ones(1, 2)))
    window.close()
    assert window.layers(1) == []

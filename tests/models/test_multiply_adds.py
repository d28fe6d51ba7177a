"""Multiply-adds of layers, worked out by hand from their shapes, and those of known networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepscope.models import registry
from stepscope.models.multiply_adds import multiply_adds, tensors_in


def counts_of(model: nn.Module, call: Callable[[], object]) -> dict[str, int | None]:
    """Call a network and count each of its modules from what it took and returned."""
    found: dict[str, int | None] = {}

    def hook(name: str) -> Callable[..., None]:
        def count(module: nn.Module, args: Any, named: Any, output: Any) -> None:
            found[name] = multiply_adds(module, (args, named), output)

        return count

    handles = [
        module.register_forward_hook(hook(name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    call()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    [
        # 28·28·6·75 + 10·10·16·150 + 400·120 + 120·84 + 84·10
        ("lenet", 32, 651_720),
        # 1.81 G for ImageNet, as published with the network and counted by others.
        ("resnet18_imagenet", 224, 1_814_073_344),
    ],
)
def test_the_multiply_adds_of_known_networks(name, size, wanted):
    with torch.device("meta"):
        model = registry.build(name, classes=registry.ZOO[name].classes)
        images = torch.empty(2, 3, size, size)
    found = counts_of(model, lambda: model(images))
    assert sum(count or 0 for count in found.values()) == 2 * wanted


@pytest.mark.parametrize(
    ("module", "shape", "wanted"),
    [
        (nn.Conv1d(4, 8, 3, groups=2), (2, 4, 10), 2 * 8 * 8 * 2 * 3),
        (nn.Conv3d(1, 2, 3, stride=2), (1, 1, 7, 7, 7), 2 * 27 * 27),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (2, 4, 5, 5), 2 * 4 * 25 * 3 * 4),
        (nn.Linear(3, 5), (2, 7, 3), 2 * 7 * 3 * 5),
        (nn.LSTM(3, 5), (7, 2, 3), 7 * 2 * 4 * 5 * (3 + 5)),
        (nn.GRU(3, 5, num_layers=2), (7, 2, 3), 7 * 2 * 3 * 5 * ((3 + 5) + (5 + 5))),
        (nn.RNN(3, 5, bidirectional=True), (7, 3), 7 * 2 * 5 * (3 + 5)),
        (nn.LSTM(3, 5, proj_size=2), (7, 2, 3), 7 * 2 * (4 * 5 * (3 + 2) + 5 * 2)),
        (nn.LSTMCell(3, 5), (2, 3), 2 * 4 * 5 * (3 + 5)),
        (nn.GRUCell(3, 5), (2, 3), 2 * 3 * 5 * (3 + 5)),
        (nn.ReLU(), (2, 3), 0),
        (nn.BatchNorm1d(3), (2, 3), 0),
        (nn.Bilinear(3, 3, 2), None, None),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, nn.Module) else "",
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_the_multiply_adds_of_a_layer(module, shape, wanted):
    inputs = [torch.randn(shape)] if shape else [torch.randn(1, 3)] * 2
    assert counts_of(module, lambda: module(*inputs)) == {"": wanted}


def test_a_packed_sequence_counts_its_real_time_steps():
    module = nn.LSTM(3, 5)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(7, 2, 3), torch.tensor([7, 4]))
    assert counts_of(module, lambda: module(packed)) == {"": (7 + 4) * 4 * 5 * (3 + 5)}


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_counts_its_projections_and_both_products(batch_first):
    width, batch, queries, keys = 8, 2, 5, 7
    module = nn.MultiheadAttention(width, 2, kdim=6, vdim=4, batch_first=batch_first)

    def tokens(count: int, size: int) -> Tensor:
        return torch.randn(*((batch, count) if batch_first else (count, batch)), size)

    given = {"query": tokens(queries, width), "key": tokens(keys, 6)}
    projections = queries * width * width * 2 + keys * width * (6 + 4)
    products = 2 * queries * keys * width
    found = counts_of(module, lambda: module(**given, value=tokens(keys, 4)))
    assert found == {"": batch * (projections + products)}


def test_an_embedding_multiplies_nothing():
    module = nn.Embedding(10, 4)
    assert counts_of(module, lambda: module(torch.arange(3))) == {"": 0}


def test_a_class_of_somebodys_own_is_unknown_unless_it_is_a_kind_of_layer():
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x.T

    class OwnConvolution(nn.Conv2d):
        pass

    own, known = Own(), OwnConvolution(1, 1, 1)
    assert counts_of(own, lambda: own(torch.ones(2, 2))) == {"": None}
    assert counts_of(known, lambda: known(torch.ones(1, 1, 2, 2))) == {"": 4}


@dataclass
class Answer:
    scores: Tensor
    note: str = "not a tensor"


def test_tensors_are_found_wherever_they_lie():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    nested = [1, (one, None), {"two": two, "word": "x"}, Answer(three)]
    assert [len(tensor) for tensor in tensors_in(nested)] == [1, 2, 3]
    assert list(tensors_in("nothing")) == []


def test_what_holds_itself_does_not_go_on_for_ever():
    around: list[object] = [torch.ones(1)]
    around.append(around)
    assert len(list(tensors_in(around))) > 1

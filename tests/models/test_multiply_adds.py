"""Multiply-adds of layers, worked out by hand from their shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepscope.models.multiply_adds import multiply_adds, tensors_in


class OwnConvolution(nn.Conv2d):
    pass


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y


def count_of(module: nn.Module, *inputs: Any, **named: Any) -> int | None:
    return multiply_adds(module, (inputs, named), module(*inputs, **named))


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
        (nn.Bilinear(3, 3, 2), (2, 3), None),
        (OwnConvolution(1, 1, 1), (1, 1, 2, 2), 4),  # a kind of layer
        (Product(), (2, 2), None),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, nn.Module) else "",
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_the_multiply_adds_of_a_layer(module, shape, wanted):
    inputs = [torch.randn(shape)] * (2 if isinstance(module, nn.Bilinear | Product) else 1)
    assert count_of(module, *inputs) == wanted


def test_an_embedding_multiplies_nothing():
    assert count_of(nn.Embedding(10, 4), torch.arange(3)) == 0


def test_a_packed_sequence_counts_its_real_time_steps():
    module = nn.LSTM(3, 5)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(7, 2, 3), torch.tensor([7, 4]))
    assert count_of(module, packed) == (7 + 4) * 4 * 5 * (3 + 5)


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_counts_its_projections_and_both_products(batch_first):
    width, batch, queries, keys = 8, 2, 5, 7
    module = nn.MultiheadAttention(width, 2, kdim=6, vdim=4, batch_first=batch_first)

    def tokens(count: int, size: int) -> Tensor:
        return torch.randn(*((batch, count) if batch_first else (count, batch)), size)

    given = {"query": tokens(queries, width), "key": tokens(keys, 6)}
    projections = queries * width * width * 2 + keys * width * (6 + 4)
    products = 2 * queries * keys * width
    found = count_of(module, **given, value=tokens(keys, 4))
    assert found == batch * (projections + products)


@dataclass
class Answer:
    scores: Tensor
    note: str = "not a tensor"


def test_tensors_are_found_wherever_they_lie():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    nested: list[object] = [1, (one, None), {"two": two, "word": "x"}, Answer(three)]
    assert [len(tensor) for tensor in tensors_in(nested)] == [1, 2, 3]
    assert list(tensors_in("nothing")) == []
    nested.append(nested)
    assert len(list(tensors_in(nested))) > 3, "the search ends"

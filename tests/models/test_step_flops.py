"""The work of a step, against what is counted on paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stepscope.models.step_flops import NotCounted, StepWork, count_work
from stepscope.models.step_tensors import BACKWARD, FORWARD, Mark


def work_of(network: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> StepWork:
    samples = torch.ones(shape)
    parameters = list(network.parameters()) if isinstance(network, nn.Module) else []

    def step(mark: Mark) -> None:
        loss = network(samples).sum()
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)

    return count_work(step, parameters, (samples,))


def test_a_network_of_two_layers_is_counted_as_on_paper():
    work = work_of(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), 8, 10)
    first, second = 2 * 8 * 10 * 20, 2 * 8 * 20 * 5
    assert work.forward.flop == first + second
    # The gradient of the kernels twice, that of the input only where somebody needs it.
    assert work.backward.flop == first + 2 * second


def test_bytes_are_weights_and_batch_once_and_what_is_made_twice():
    work = work_of(nn.Linear(10, 20, bias=False), 8, 10)
    weights, batch, made, total = 4 * 200, 4 * 80, 4 * 160, 4
    assert work.forward.moved_bytes == weights + batch + 2 * (made + total)
    assert work.backward.moved_bytes >= weights + 4 * 200  # weights are read, gradients written


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_the_backward_pass_of_a_convolution_is_twice_its_forward_pass(groups):
    first = nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False)
    second = nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False)
    work = work_of(nn.Sequential(first, second), 2, 8, 5, 5)
    one = 2 * 2 * 8 * 25 * (8 // groups) * 9
    assert work.forward.flop == 2 * one
    assert work.backward.flop == 3 * one  # the first has no gradient of its input


def test_a_transposed_convolution_counts_its_input():
    work = work_of(nn.ConvTranspose2d(4, 6, 3, stride=2, bias=False), 2, 4, 5, 5)
    one = 2 * 2 * 4 * 25 * 6 * 9
    assert (work.forward.flop, work.backward.flop) == (one, one)


def test_attention_and_products_with_a_vector_are_counted():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            seen = F.scaled_dot_product_attention(tokens * self.scale, tokens, tokens)
            return seen.reshape(-1, 16) @ self.scale

    work = work_of(Attention(), 2, 4, 10, 16)
    scores_and_use = 2 * (2 * 2 * 4 * 10 * 10 * 16)
    assert work.forward.flop == scores_and_use + 2 * 2 * 4 * 10 * 16
    assert work.backward.flop > scores_and_use


def test_what_multiplies_in_an_unknown_way_is_named():
    weight = nn.Parameter(torch.eye(4))
    with pytest.raises(NotCounted, match="linalg_inv"):
        work_of(lambda samples: samples @ torch.linalg.inv(weight), 2, 4)

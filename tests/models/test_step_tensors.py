"""Counting the tensors of a step: by hand for a small network, against torch for larger ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from stepscope.models.step_tensors import (
    BACKWARD,
    FORWARD,
    NO_OPTIMIZER,
    OPTIMIZER,
    Block,
    Mark,
    OptimizerMemory,
    StepLog,
    UnlikeSteps,
    add_up,
    at_batch,
    measure_optimizer,
    record_step,
)

FLOAT = 4


def log_of(model: nn.Module, shape: tuple[int, ...], samples: int) -> StepLog:
    images, labels = torch.zeros(samples, *shape), torch.zeros(samples, dtype=torch.long)

    def step(mark: Mark) -> None:
        loss = F.cross_entropy(model(images), labels)
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)

    log = record_step(step, [*model.parameters(), *model.buffers()], [images, labels], samples)
    model.zero_grad()
    return log


def of_kind(log: StepLog, kind: str) -> int:
    return sum(block.size_bytes for block in log.blocks if block.kind == kind)


def test_a_two_layer_network_counted_on_paper():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    memory = add_up(log_of(model, (6,), 5), NO_OPTIMIZER)
    parameters = (6 * 8 + 8 + 8 * 3 + 3) * FLOAT
    batch = 5 * 6 * FLOAT + 5 * 8
    assert memory.at_peak["parameters"] == parameters
    assert memory.at_peak["batch"] == batch
    # Kept: the hidden layer after its ReLU, the log-probabilities; the scores and the hidden layer
    # before the ReLU are gone by then, or are still held by name.
    hidden, scores = 5 * 8 * FLOAT, 5 * 3 * FLOAT
    assert hidden + scores <= memory.kept_bytes <= 2 * (hidden + scores) + 16


def test_gradients_are_as_large_as_what_is_trained():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert of_kind(log_of(model, (6,), 4), "gradients") == trained * FLOAT


def test_a_step_at_any_batch_follows_from_two_small_ones():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    small, large = log_of(model, (3, 16, 16), 2), log_of(model, (3, 16, 16), 3)
    real = log_of(model, (3, 16, 16), 40)
    assert at_batch(small, large, 40) == real


def test_steps_that_do_different_things_are_not_stretched():
    small = StepLog(2, (Block("activations", 8),), (1, -1), {})
    with pytest.raises(UnlikeSteps):
        at_batch(small, StepLog(3, (Block("activations", 8),), (1,), {}), 10)


def test_the_peak_is_found_with_what_was_alive_then():
    blocks = (
        Block("parameters", 100),
        Block("activations", 50),
        Block("activations", 30),
        Block("temporaries", 40),
        Block("gradients", 100),
    )
    # forward: both activations; backward: a temporary, one activation goes, the gradient comes
    events = (1, 2, 3, 4, -2, 5, -4, -3)
    log = StepLog(1, blocks, events, {FORWARD: 3, BACKWARD: 8})
    memory = add_up(log, OptimizerMemory(state=1, temporary=0))
    assert memory.peak_bytes == 100 + 30 + 40 + 100 + 100  # and as much state as gradients
    assert memory.peak_phase == BACKWARD
    assert memory.at_peak == {
        "parameters": 100,
        "batch": 0,
        "activations": 30,
        "gradients": 100,
        "temporaries": 40,
    }
    assert memory.kept_bytes == 80
    assert memory.phases[FORWARD]["end_bytes"] == 180 + 100
    assert memory.phases[OPTIMIZER]["end_bytes"] == 100 + 100


def test_an_optimiser_that_needs_room_to_step_can_make_the_peak():
    blocks = (Block("parameters", 100), Block("gradients", 100))
    log = StepLog(1, blocks, (1, 2), {FORWARD: 1, BACKWARD: 2})
    memory = add_up(log, OptimizerMemory(state=2, temporary=1))
    assert memory.peak_phase == OPTIMIZER
    assert memory.peak_bytes == 100 + 100 + 200 + 100


@given(
    st.lists(
        st.tuples(st.sampled_from(["activations", "temporaries"]), st.integers(0, 1000)), min_size=1
    )
)
def test_what_is_alive_at_the_peak_adds_up_to_it(sizes):
    blocks = tuple(Block(kind, size) for kind, size in sizes)  # type: ignore[arg-type]
    births = tuple(range(1, len(blocks) + 1))
    log = StepLog(1, blocks, births + tuple(-n for n in births), {FORWARD: len(births)})
    memory = add_up(log, NO_OPTIMIZER)
    assert sum(memory.at_peak.values()) == memory.peak_bytes == sum(size for _, size in sizes)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda p: optim.SGD(p, 0.1), 0),
        (lambda p: optim.SGD(p, 0.1, momentum=0.9), 1),
        (lambda p: optim.Adagrad(p, 0.1), 1),
        (lambda p: optim.RMSprop(p, momentum=0.9), 2),
        (lambda p: optim.Adadelta(p, 0.1), 2),
        (lambda p: optim.Adam(p, 0.1), 2),
        (lambda p: optim.AdamW(p, 0.1), 2),
        (lambda p: optim.Adam(p, amsgrad=True), 3),
    ],
)
def test_optimisers_keep_so_many_values_a_parameter(make, values):
    assert measure_optimizer(make).state == values  # type: ignore[arg-type]


def test_adam_needs_room_for_a_moment_and_plain_sgd_none():
    assert measure_optimizer(lambda p: optim.Adam(p, 0.1)).temporary >= 1
    assert measure_optimizer(lambda p: optim.SGD(p, 0.1)).temporary == 0

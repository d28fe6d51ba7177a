"""The setup of a script is taken and one of its steps is counted, without changing anything."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from stepscope.records import schema
from stepscope.trace.allreduce_hooks import AllreduceWatch
from stepscope.trace.event_buffer import DETAIL as DETAIL_EVENT
from stepscope.trace.event_buffer import FIELDS, HookState
from stepscope.trace.flop_window import FlopWindow
from stepscope.trace.script_setup import (
    COMPILED,
    OPERATIONS_AFTER_STEPS,
    SETUP_AFTER_STEPS,
    TOO_EARLY,
    SetupWatch,
    describe_setup,
)
from stepscope.trace.torch_hooks import _register_root

BATCH = 4
# Of `network`: a convolution, a linear layer; the first computes no gradient of its input.
CONVOLUTION = 2 * BATCH * 6 * 6 * 8 * (3 * 3 * 3)
LINEAR = 2 * BATCH * (8 * 6 * 6) * 10


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 36, 10))


def step_of(model: nn.Module, images: torch.Tensor) -> list[Any]:
    """Return the loss and the gradients of a step, and a random number after it."""
    torch.manual_seed(1)
    loss = model(images).square().sum()
    loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    return [loss.item(), *gradients, torch.rand(1).item()]


@contextmanager
def opened() -> Iterator[FlopWindow]:
    window = FlopWindow()
    window.open()
    try:
        yield window
    finally:
        window.close()


def counted(model: nn.Module, images: torch.Tensor) -> FlopWindow:
    with opened() as window:
        step_of(model, images)
    return window


def watched_state(model: nn.Module) -> HookState:
    state = HookState(AllreduceWatch())
    _register_root(state, model)
    return state


def details_in(state: HookState) -> list[str]:
    fields = state.buffer.fields
    events = [fields[at : at + len(FIELDS)] for at in range(0, len(fields), len(FIELDS))]
    return [event[2] for event in events if event[0] == DETAIL_EVENT]


def test_the_operations_of_a_step_are_counted() -> None:
    flops, reason = counted(network(), torch.rand(BATCH, 3, 8, 8)).flops(BATCH)
    assert reason is None
    assert flops is not None
    assert flops["forward"] == CONVOLUTION + LINEAR
    assert flops["backward"] == CONVOLUTION + 2 * LINEAR
    assert flops["per_sample"] == (2 * CONVOLUTION + 3 * LINEAR) / BATCH
    assert flops["precision"] == "fp32"


def test_counting_changes_neither_results_nor_random_numbers() -> None:
    model, images = network(), torch.rand(BATCH, 3, 8, 8)
    before = step_of(model, images)
    with opened():
        during = step_of(model, images)
    for plain, other in zip(before, during, strict=True):
        assert torch.equal(torch.as_tensor(plain), torch.as_tensor(other))


def test_closing_the_window_restores_torch() -> None:
    before = nn.Module.__call__, torch.autograd.backward, torch.autograd.grad
    counted(network(), torch.rand(BATCH, 3, 8, 8))
    assert (nn.Module.__call__, torch.autograd.backward, torch.autograd.grad) == before


def test_an_evaluation_inside_the_counted_step_does_not_count() -> None:
    model, images = network(), torch.rand(BATCH, 3, 8, 8)
    with opened() as window:
        model.eval()
        for _ in range(5):
            model(images)
        model.train()
        step_of(model, images)
    assert window.forward.flop == CONVOLUTION + LINEAR


def test_calls_that_no_backward_pass_follows_do_not_count() -> None:
    with opened() as window:
        network()(torch.rand(BATCH, 3, 8, 8))
    assert window.flops(BATCH)[0] is None


def test_unknown_operations_are_named_instead_of_left_out() -> None:
    model = nn.Bilinear(4, 4, 2)
    with opened() as window:
        model(torch.rand(3, 4), torch.rand(3, 4)).sum().backward()
    flops, reason = window.flops(3)
    assert flops is None
    assert "aten::_trilinear" in str(reason)


@pytest.mark.parametrize(
    ("memory_format", "contiguous"), [(torch.contiguous_format, 1.0), (torch.channels_last, 0.0)]
)
def test_the_format_of_convolutions_is_noted(
    memory_format: torch.memory_format, contiguous: float
) -> None:
    model = network().to(memory_format=memory_format)
    images = torch.rand(BATCH, 3, 8, 8).contiguous(memory_format=memory_format)
    operations = counted(model, images).operations()
    assert operations is not None
    assert operations["contiguous_share"] == contiguous
    assert operations["convolution_share"] == 2 * CONVOLUTION / (2 * CONVOLUTION + 3 * LINEAR)


def test_double_precision_has_its_own_peak() -> None:
    flops, _ = counted(network().double(), torch.rand(BATCH, 3, 8, 8).double()).flops(BATCH)
    assert flops is not None
    assert flops["precision"] == "fp64"


def test_the_setup_names_model_optimiser_and_settings() -> None:
    model = network()
    state = watched_state(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    state.optimizers[id(optimizer)] = weakref.ref(optimizer)
    setup = describe_setup(state)
    assert setup["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert setup["parameter_tensors"] == 4
    assert setup["dtype"] == "float32"
    assert setup["optimizers"] == [{"name": "AdamW", "tensors": 4, "fused": None, "foreach": False}]
    assert setup["threads"] == torch.get_num_threads()
    assert not setup["anomaly_detection"]
    assert not setup["compiled"]


@pytest.mark.parametrize(
    ("updated", "computed", "unused", "first"),
    [
        (slice(2, 4), slice(0, 4), 2, True),  # a backbone that is not frozen
        (slice(0, 2), slice(0, 4), 2, False),
        (slice(0, 4), slice(0, 4), 0, True),
        (slice(2, 4), slice(2, 4), 0, True),  # frozen
        (slice(0, 0), slice(0, 4), 0, True),  # no optimiser of torch updates this model
    ],
)
def test_gradients_that_no_optimiser_uses_are_counted(
    updated: slice, computed: slice, unused: int, first: bool
) -> None:
    model = network()
    state = watched_state(model)
    weights = list(model.parameters())
    for weight in weights[computed]:
        weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.SGD(weights[updated] or [nn.Parameter(torch.ones(1))])
    state.optimizers[id(optimizer)] = weakref.ref(optimizer)
    setup = describe_setup(state)
    assert setup["unused_gradients"] == unused
    if unused:
        assert setup["unused_gradients_first"] == first
        kept = sum(weight.numel() for weight in weights[updated])
        assert setup["unused_gradients_share"] == pytest.approx(1 - kept / setup["parameters"])


def test_anomaly_detection_is_noted() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert describe_setup(watched_state(network()))["anomaly_detection"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on its import
def test_a_model_that_is_to_be_compiled_is_noted() -> None:
    model = network()
    model.compile(backend="eager")
    assert describe_setup(watched_state(model))["compiled"]


def test_the_setup_keeps_no_model_alive() -> None:
    model = network()
    state = watched_state(model)
    watch = SetupWatch(state)
    state.steps = SETUP_AFTER_STEPS
    watch.between_steps()
    del model
    assert not state.roots
    setup = watch.setup(0.0)
    assert setup is not None
    assert setup["parameter_tensors"] == 4


def test_one_step_is_counted_and_marked() -> None:
    model, images = network(), torch.rand(BATCH, 3, 8, 8)
    state = watched_state(model)
    watch = SetupWatch(state)
    for number in range(OPERATIONS_AFTER_STEPS + 5):
        state.steps = number
        if number >= watch.due_at_steps:
            watch.between_steps()
        assert watch.is_counting == (number == OPERATIONS_AFTER_STEPS)
        step_of(model, images)
    assert details_in(state) == [schema.OPERATIONS, schema.FULL]
    flops, _ = watch.flops(BATCH)
    assert flops is not None
    assert flops["forward"] == CONVOLUTION + LINEAR


def test_a_short_script_says_why_nothing_was_counted() -> None:
    assert SetupWatch(watched_state(network())).flops(BATCH) == (None, TOO_EARLY)


def test_compiled_code_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo.utils as dynamo

    monkeypatch.setitem(dynamo.counters, "frames", {"total": 1})  # before the script
    state = watched_state(network())
    watch = SetupWatch(state)
    monkeypatch.setitem(dynamo.counters, "frames", {"total": 2})
    for state.steps in (SETUP_AFTER_STEPS, OPERATIONS_AFTER_STEPS):
        watch.between_steps()
    assert watch.flops(BATCH) == (None, COMPILED)
    assert not watch.is_counting


def test_a_failing_count_does_not_reach_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: FlopWindow) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(FlopWindow, "open", fail)
    state = watched_state(network())
    watch = SetupWatch(state)
    for state.steps in (SETUP_AFTER_STEPS, OPERATIONS_AFTER_STEPS):
        watch.between_steps()
    assert watch.flops(BATCH) == (None, "the count failed: RuntimeError: planted")

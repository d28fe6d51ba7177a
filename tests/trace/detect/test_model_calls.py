"""What calls of modules tell: metrics after the backward pass, skipped batches, single batches."""

from __future__ import annotations

import pytest
from simulated_loop import (
    CRITIC,
    MODEL,
    OTHER_LOADER,
    SGD,
    TEST,
    TRAIN,
    Loop,
    Sheet,
    fields_of,
    repeats_taken,
)

from stepscope.trace import event_buffer as e
from stepscope.trace.detect.pending_batches import ModelCalls
from stepscope.trace.detect.steps import StepDetector

METRIC = LOSS = CRITIC


# what follows a call


def test_without_a_loader_the_forward_pass_begins_with_the_model_and_not_with_a_metric(
    loop: Loop,
) -> None:
    for samples in (8, 8, 5):
        loop.play(f"zero, call samples={samples}, wait 0.5, backward, update")
        loop.play(f"call 0.25 {METRIC} samples={samples}, wait 7")
    assert loop.sheet.samples == [8, 8, 5], "and its samples are those of the model's call"
    assert loop.sheet.phases_ms(1) == {"forward": 2.75, "backward": 4, "optimizer": 4, "other": 7}


def test_without_a_loader_several_calls_are_one_forward_pass(loop: Loop) -> None:
    loop.play(f"call, wait 1, call 2 {CRITIC}, wait 1, backward, update, " * 3)
    assert loop.sheet.phases_ms(2) == {"forward": 6, "backward": 4, "optimizer": 3}


def test_a_loss_that_is_a_module_is_part_of_a_plain_step(loop: Loop) -> None:
    with loop.iterating():
        for samples in (8, None, 8, 8, None, 8):
            loop.play(f"fetch samples={samples}, call samples={None if samples else 4}")
            loop.play(f"call 1 {LOSS} samples=9, backward, update")
    assert repeats_taken(loop) == [0, 4, 0, 0]
    assert loop.sheet.samples == [8, 4, 8, 8, 4, 8]


# which samples


def test_the_first_call_tells_of_the_module_that_told_before() -> None:
    calls = ModelCalls()
    assert (calls.together(), calls.end()) == (None, None)
    calls.take(MODEL, True, 8)
    calls.take(CRITIC, True, 6)
    assert (calls.together(), calls.end()) == (8, 8)
    calls.take(CRITIC, True, 6)
    calls.take(MODEL, False, 100)  # a test with gradients on
    calls.take(MODEL, True, 7)
    calls.take(MODEL, True, 7)
    assert (calls.together(), calls.end()) == (14, 7)
    calls.take(MODEL, True, None)
    calls.take(CRITIC, True, 6)
    assert (calls.together(), calls.end()) == (None, 6)
    calls.take(CRITIC, True, 6)
    other = calls.copy()
    calls.clear()
    assert (calls.end(), other.end()) == (None, 6)
    calls.take(MODEL, True, None)
    calls.take(MODEL, True, 5)
    assert (calls.together(), calls.end()) == (None, 5)


SAMPLES_OF_STEPS = {
    "batches that a resumed epoch passes over are not trained with": (
        "iterate, " + "fetch, " * 5 + "learn, fetch, learn samples=None, "
        "fetch samples=3, learn samples=None, exhaust",
        [8, 8, 3],
    ),
    "batches that are put together are all trained with": (
        "iterate, " + ("fetch, " * 3 + "learn samples=24, ") * 3 + "exhaust",
        [24, 24, 24],
    ),
    "batches that are fetched together, one ahead, are used one by one": (
        "iterate, fetch, "
        + ("fetch, " * 4 + "accumulate, " + "accumulate samples=None, " * 3 + "update, ") * 3
        + "exhaust, learn",
        [32, 32, 32, 8],
    ),
    "an accumulation that grows uses all that was fetched for it": (
        "iterate, "
        + "".join("fetch, " * n + "accumulate, " * n + "update, " for n in (2, 2, 4, 4, 8))
        + "exhaust",
        [16, 16, 32, 32, 64],
    ),
    "two views of a batch are no two batches": (
        "iterate, fetch, fetch, call samples=16, backward, update, "
        + "fetch, call samples=None, backward, update, " * 4
        + "exhaust, call samples=16, backward, update",
        [8] * 6,
    ),
    "two loaders may both be one batch ahead": (
        f"iterate {TRAIN}, fetch 1 {TRAIN}, iterate {OTHER_LOADER}, fetch 1 {OTHER_LOADER}, "
        + f"fetch 1 {TRAIN}, fetch 1 {OTHER_LOADER}, learn, " * 5
        + f"exhaust 1 {TRAIN}, exhaust 1 {OTHER_LOADER}, learn",
        [16] * 6,
    ),
    "a single batch is added to that of the loop around it": (
        "iterate, "
        f"fetch, draw 101 of=2 samples=4, learn optimizer={SGD} samples=4, learn, "
        f"fetch, draw 102 of=2 samples=4, learn optimizer={SGD} samples=4, learn, exhaust",
        [12, 12],
    ),
    "a single batch counts each time it is trained with": ("draw 100, " + "learn, " * 4, [8] * 4),
    "also in steps without detail": (
        "".join(f"draw {key} of=1, learn, " for key in range(100, 104))
        + "detail 'off', "
        + "".join(f"draw {key} of=1, update, " for key in range(104, 109))
        + "detail 'full', "
        + "".join(f"draw {key} of=1, learn, " for key in range(109, 112)),
        [8] * 12,
    ),
    "one that is only looked at does not": (f"draw 100 of={TRAIN}, train 3", [8] * 3),
    "nor one of another loader": (f"draw 100 of={OTHER_LOADER}, train 3", [8] * 3),
    "nor one that a model is tested with": (f"draw 100 of={TEST} samples=4, predict, learn", [8]),
    "a test with gradients on tells nothing": (
        "call 5 training=False samples=100, learn, " * 3,
        [8] * 3,
    ),
    "nor does a loss, a module that is always in training mode": (
        f"call training=False samples=4, call 1 {LOSS} samples=40, backward, update, " * 2,
        [4, 4],
    ),
    "a model trained in eval mode does": ("learn training=False samples=4, " * 2, [4, 4]),
}


@pytest.mark.parametrize("name", SAMPLES_OF_STEPS)
def test_a_step_has_the_samples_that_it_trains_with(loop: Loop, name: str) -> None:
    script, samples = SAMPLES_OF_STEPS[name]
    loop.play(script)
    assert loop.sheet.samples == samples


# batches that are skipped


def test_a_batch_that_is_skipped_is_not_the_next_steps(loop: Loop) -> None:
    with loop.iterating():
        for number in range(6):
            samples = 5 if number == 5 else 8
            if number == 2:
                loop.fetch(1, samples=None)
            loop.fetch(1, samples=samples)
            loop.learn(samples=samples if number == 2 else None)
    assert loop.sheet.samples == [8, 8, 8, 8, 8, 5]
    assert loop.sheet.phases_ms(2)["data"] == 2


@pytest.mark.parametrize("ahead", [0, 1])
def test_batches_fetched_together_are_all_used_after_steps_without_detail(
    loop: Loop, ahead: int
) -> None:
    loop.iterate(length=100)
    for _ in range(ahead):
        loop.fetch()
    for number in range(9):
        is_off = 3 <= number < 6
        loop.record(e.DETAIL, "off" if is_off else "full")
        for _ in range(4):
            loop.fetch(1)
        for _ in range(0 if is_off else 4):
            loop.accumulate(samples=8)
        loop.update(3)
    assert loop.sheet.samples == [32] * 9


# iterators that are made for one batch


def test_a_batch_of_an_iterator_of_its_own_belongs_to_the_step(loop: Loop) -> None:
    for key in range(100, 103):
        loop.iterate(key, ms=1, of=1)
        loop.fetch(1, key)
        loop.drop(key)
        loop.learn()
    assert loop.sheet.samples == [8, 8, 8]
    assert loop.sheet.splits == ["train"]


def test_single_batches_that_nothing_is_trained_with_are_not_kept(loop: Loop) -> None:
    loop.learn()
    detector = StepDetector(Sheet(), 0)
    for key in range(100, 200):
        loop.draw(key)
    detector.take(fields_of(loop.events))
    assert len(detector.tracker.pending.single_use) < 20


def test_nor_is_one_that_a_model_is_tried_with_in_the_middle_of_a_step(loop: Loop) -> None:
    with loop.iterating():
        for key in range(100, 103):
            loop.play(f"fetch, draw {key} of=2, predict, learn")
    assert loop.sheet.samples[1:] == [8, 8], "the model is not known before it was trained"

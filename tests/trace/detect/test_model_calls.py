"""What calls of modules tell: metrics after the backward pass, skipped batches, single batches."""

from __future__ import annotations

import pytest
from simulated_loop import (
    ADAM,
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
        loop.zero(1)
        loop.call(2, samples=samples)
        loop.wait(0.5)
        loop.backward(4)
        loop.update(3)
        loop.call(0.25, METRIC, samples=samples)
        loop.wait(7)
    assert loop.sheet.samples == [8, 8, 5], "and its samples are those of the model's call"
    assert loop.sheet.phases_ms(1) == {"forward": 2.75, "backward": 4, "optimizer": 4, "other": 7}


def test_without_a_loader_several_calls_are_one_forward_pass(loop: Loop) -> None:
    for _ in range(3):
        loop.call(2)
        loop.wait(1)
        loop.call(2, CRITIC)
        loop.wait(1)
        loop.backward(4)
        loop.update(3)
    assert loop.sheet.phases_ms(2) == {"forward": 6, "backward": 4, "optimizer": 3}


def test_what_lies_between_a_generator_and_its_critic_is_the_forward_pass(loop: Loop) -> None:
    with loop.iterating():
        for _ in range(3):
            loop.fetch(1)
            loop.accumulate(CRITIC)
            for optimizer in (ADAM, SGD):
                loop.call(1)
                loop.wait(5)
                loop.learn(CRITIC, optimizer=optimizer)
    assert loop.sheet.phases_ms(2)["forward"] == 18


def test_a_loss_that_is_a_module_is_part_of_a_plain_step(loop: Loop) -> None:
    with loop.iterating():
        for samples in (8, None, 8, 8, None, 8):
            loop.fetch(1, samples=samples)
            loop.call(2, samples=None if samples else 4)
            loop.call(1, LOSS, samples=9)
            loop.backward(4)
            loop.update(3)
    assert repeats_taken(loop) == [0, 5, 0]
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


def test_batches_that_a_resumed_epoch_passes_over_are_not_trained_with(loop: Loop) -> None:
    with loop.iterating():
        for _ in range(4):
            loop.fetch(1)
        for number in range(3):
            loop.fetch(1, samples=8 if number < 2 else 3)
            loop.learn(samples=8 if number == 0 else None)
    assert loop.sheet.samples == [8, 8, 3]


def test_batches_that_are_put_together_are_all_trained_with(loop: Loop) -> None:
    with loop.iterating():
        for _ in range(3):
            for _ in range(3):
                loop.fetch(1)
            loop.learn(samples=24)
    assert sum(loop.sheet.samples) == 72


def test_batches_that_are_fetched_together_and_used_one_by_one_are_too(loop: Loop) -> None:
    with loop.iterating():
        loop.fetch(1)  # the loader is one ahead
        for _ in range(3):
            for _ in range(4):
                loop.fetch(1)
            for number in range(4):
                loop.accumulate(samples=None if number else 8)
            loop.update(3)
    loop.learn()
    assert loop.sheet.samples == [32, 32, 32, 8]


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


def test_an_accumulation_that_grows_uses_all_that_was_fetched_for_it(loop: Loop) -> None:
    with loop.iterating():
        for batches in (2, 2, 4, 4, 8):
            for _ in range(batches):
                loop.fetch()
            for _ in range(batches):
                loop.accumulate(samples=8)
            loop.update(3)
    assert loop.sheet.samples == [16, 16, 32, 32, 64]


def test_two_views_of_a_batch_are_no_two_batches(loop: Loop) -> None:
    loop.iterate()
    loop.fetch()
    for number in range(6):
        if number < 5:
            loop.fetch()
        else:
            loop.exhaust()
        loop.call(2, samples=16 if number in (0, 5) else None)
        loop.backward(4)
        loop.update(3)
    assert loop.sheet.samples == [8] * 6


def test_two_loaders_may_both_be_one_batch_ahead(loop: Loop) -> None:
    for loader in (TRAIN, OTHER_LOADER):
        loop.iterate(loader)
        loop.fetch(1, loader)
    for number in range(6):
        for loader in (TRAIN, OTHER_LOADER):
            if number < 5:
                loop.fetch(1, loader)
            else:
                loop.exhaust(1, loader)
        loop.learn(samples=8)
    assert loop.sheet.samples == [16] * 6


# iterators that are made for one batch


def test_a_batch_of_an_iterator_of_its_own_belongs_to_the_step(loop: Loop) -> None:
    for key in range(100, 103):
        loop.iterate(key, ms=1, of=1)
        loop.fetch(1, key)
        loop.drop(key)
        loop.learn()
    assert loop.sheet.samples == [8, 8, 8]
    assert loop.sheet.splits == ["train"]


def test_it_is_added_to_the_batch_of_the_loop_around_it(loop: Loop) -> None:
    with loop.iterating():
        for key in range(100, 103):
            loop.fetch(1)
            loop.draw(key, of=2, samples=4)
            loop.learn(optimizer=SGD, samples=4)
            loop.learn()
    assert loop.sheet.samples == [12, 12, 12]


def test_a_batch_that_is_trained_with_again_and_again_counts_each_time(loop: Loop) -> None:
    loop.draw(100)
    for _ in range(4):
        loop.learn()
    assert loop.sheet.samples == [8] * 4


def test_so_it_does_in_steps_without_detail(loop: Loop) -> None:
    for key in range(100, 112):
        is_off = 104 <= key < 109
        loop.record(e.DETAIL, "off" if is_off else "full")
        loop.draw(key, of=1)
        if is_off:
            loop.update(3)
        else:
            loop.learn()
    assert loop.sheet.samples == [8] * 12


def test_single_batches_that_nothing_is_trained_with_are_not_kept(loop: Loop) -> None:
    loop.learn()
    detector = StepDetector(Sheet(), 0)
    for key in range(100, 200):
        loop.draw(key)
    detector.take(fields_of(loop.events))
    assert len(detector.tracker.pending.single_use) < 20


@pytest.mark.parametrize("looked_at", [TRAIN, OTHER_LOADER])
def test_a_batch_that_is_only_looked_at_is_not_trained_with(loop: Loop, looked_at: int) -> None:
    loop.draw(100, of=looked_at)
    loop.train(3)
    assert loop.sheet.samples == [8] * 3


def test_nor_is_one_that_a_model_is_tried_with_in_the_middle_of_a_step(loop: Loop) -> None:
    with loop.iterating():
        for key in range(100, 103):
            loop.fetch()
            loop.draw(key, of=2)
            loop.predict()
            loop.learn()
    assert loop.sheet.samples[1:] == [8, 8], "the model is not known before it was trained"


def test_nor_is_one_that_a_model_is_tested_with(loop: Loop) -> None:
    loop.draw(100, of=TEST, samples=4)
    loop.predict()
    loop.learn()
    assert loop.sheet.samples == [8]

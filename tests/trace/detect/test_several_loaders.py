"""Which of several loaders an epoch is of: beside each other, inside each other, looked into."""

from __future__ import annotations

import pytest
from simulated_loop import OTHER_LOADER, SGD, TRAIN, Loop

SHARDS, LABELLED, UNLABELLED = 31, 41, 51


def test_a_second_loader_may_begin_anew_inside_an_epoch(loop: Loop) -> None:
    other, anew = OTHER_LOADER, OTHER_LOADER + 1
    loop.play(f"iterate ms=5, iterate {other} ms=5, " + f"fetch, fetch 2 {other}, learn, " * 2)
    loop.play(f"fetch, exhaust 1 {other}, iterate {anew} ms=5, fetch 2 {anew}, learn")
    loop.play(f"fetch, fetch 2 {anew}, learn, exhaust")
    assert [row.epoch for row in loop.sheet.rows] == [1, 1, 1, 1]


def test_a_loader_that_is_only_drawn_from_does_not_decide_the_epochs(loop: Loop) -> None:
    loop.iterate(LABELLED, ms=2, of=LABELLED)  # before the loop that goes over the other one
    labelled = LABELLED
    for epoch in range(2):
        unlabelled = UNLABELLED + epoch
        with loop.iterating(unlabelled, ms=3, of=UNLABELLED):
            for step in range(4):
                loop.fetch(1, unlabelled)
                if (
                    step == 3 - epoch * 2
                ):  # it is shorter, and begins anew in the middle of each epoch
                    loop.exhaust(1, labelled)
                    labelled += 1
                    loop.iterate(labelled, ms=2, of=LABELLED)
                loop.step(labelled)
    assert loop.sheet.numbers == [(epoch, step) for epoch in (1, 2) for step in (1, 2, 3, 4)]
    assert loop.sheet.samples == [16] * 8


def test_a_loader_that_begins_anew_in_the_first_step_of_an_epoch_does_not_decide_it(
    loop: Loop,
) -> None:
    loop.iterate(LABELLED, of=LABELLED)
    for epoch in range(3):
        unlabelled = UNLABELLED + epoch
        with loop.iterating(unlabelled, of=UNLABELLED):
            for step in range(3):
                loop.fetch(1, unlabelled)
                if epoch and step == 0:
                    loop.exhaust(1, LABELLED + epoch - 1)
                    loop.iterate(LABELLED + epoch, of=LABELLED)
                loop.fetch(1, LABELLED + epoch)
                loop.learn()
    assert loop.sheet.numbers == [(epoch, step) for epoch in (1, 2, 3) for step in (1, 2, 3)]
    assert loop.sheet.samples == [16] * 9


@pytest.mark.parametrize("drawn", [1, 2, 100])
@pytest.mark.parametrize("pause_ms", [0, 300])
def test_a_loader_that_is_drawn_from_may_begin_inside_the_first_step(
    loop: Loop, drawn: int, pause_ms: int
) -> None:
    labelled = LABELLED
    batches = 0
    for epoch in range(2):
        unlabelled = UNLABELLED + epoch
        loop.wait(5)
        with loop.iterating(unlabelled, of=UNLABELLED):
            for _ in range(4):
                loop.fetch(1, unlabelled)
                if batches % drawn == 0:  # a generator that begins the loader anew, again and again
                    if batches:
                        loop.exhaust(1, labelled)
                        labelled += 1
                    else:
                        loop.wait(pause_ms)
                    loop.iterate(labelled, of=LABELLED)
                loop.fetch(1, labelled)
                batches += 1
                loop.learn()
    assert loop.sheet.numbers[-4:] == [(2, step) for step in (1, 2, 3, 4)]
    assert len(loop.sheet.numbers) == 8
    assert loop.sheet.samples[1:] == [16] * 7


@pytest.mark.parametrize("pause_ms", [5, 200])
def test_another_loader_that_was_looked_into_is_no_part_of_the_training(
    loop: Loop, pause_ms: int
) -> None:
    loop.iterate(OTHER_LOADER, ms=5, of=OTHER_LOADER)
    loop.fetch(1, OTHER_LOADER)  # examples of the test set; this iterator lives on
    loop.wait(pause_ms)
    for key in (101, 102, 103):
        with loop.iterating(key, ms=5, of=TRAIN):
            loop.step(key)
            loop.step(key)
        evaluate(loop, key + 1000)
    assert loop.sheet.numbers == [(epoch, step) for epoch in (1, 2, 3) for step in (1, 2)]
    assert [row.epoch for row in loop.sheet.of("test")] == [1, 2, 3]
    assert loop.sheet.samples[1:] == [8] * 5
    if pause_ms > 100:  # it was for something else: its time and its batch are in no step
        assert loop.sheet.samples[0] == 8
        assert loop.sheet.of("train")[0].start_s == pytest.approx(0.206)


def test_a_loader_that_was_looked_into_may_be_tested_with(loop: Loop) -> None:
    loop.play(f"wait 3, iterate {OTHER_LOADER} of={OTHER_LOADER}, fetch 1 {OTHER_LOADER}, wait 200")
    for key in (101, 102, 103):
        loop.play(f"iterate {key} of={TRAIN}, step {key}, step {key}, exhaust 1 {key}")
        loop.play(f"fetch 1 {OTHER_LOADER}, predict 5")  # one batch of it after every epoch
    assert loop.sheet.numbers == [(epoch, step) for epoch in (1, 2, 3) for step in (1, 2)]
    assert len(loop.sheet.of("test")) == 3


@pytest.mark.parametrize("pause_ms", [0, 200])
@pytest.mark.parametrize("between", ["nothing", "a test", "an update"])
def test_loaders_inside_of_another_are_one_epoch(loop: Loop, pause_ms: int, between: str) -> None:
    for epoch in range(2):
        shards = SHARDS + epoch
        loop.wait(5)
        with loop.iterating(shards, ms=5, of=SHARDS, length=3):
            for shard in range(3):
                loop.fetch(1, shards, samples=1)
                loop.wait(pause_ms)
                inner = 100 + 10 * epoch + shard
                with loop.iterating(inner, ms=2, of=inner, length=2):
                    loop.step(inner)
                    loop.step(inner)
                if between == "a test":
                    evaluate(loop, inner + 1000)
                elif between == "an update":
                    loop.learn(optimizer=SGD)
    steps = 6 if between != "an update" else 9
    numbers = [(epoch, step) for epoch in (1, 2) for step in range(1, steps + 1)]
    assert between == "an update" or loop.sheet.numbers == numbers
    assert {epoch for epoch, _ in loop.sheet.numbers} == {1, 2}
    assert len(loop.sheet.of("test")) == (6 if between == "a test" else 0)


def evaluate(loop: Loop, key: int) -> None:
    with loop.iterating(key, ms=2, of=key):
        loop.fetch(1, key)
        loop.predict(5)


def test_a_step_may_draw_from_another_loader_after_its_first_update(loop: Loop) -> None:
    """Also in the last step of an epoch, when the first loader has nothing left."""
    for epoch in range(3):
        with loop.iterating(TRAIN + 100 * epoch, length=4, of=1):
            for number in range(4):
                loop.fetch(1, TRAIN + 100 * epoch)
                loop.learn()
                drawn = 1000 + 10 * epoch + number
                loop.iterate(drawn, length=9, of=2)
                loop.fetch(1, drawn, samples=6)
                loop.drop(drawn)
                loop.learn(optimizer=SGD, samples=6)
    assert [row.epoch for row in loop.sheet.rows] == [1] * 4 + [2] * 4 + [3] * 4
    assert loop.sheet.samples == [14] * 12

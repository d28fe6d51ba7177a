"""How many samples steps, epochs and tests have; what nobody has seen is unknown, and not 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_loop import MODEL, OTHER_LOADER, TEACHER, TEST, EventByEvent, Loop

from stepscope.meter.step_rows import epoch_values
from stepscope.trace import event_buffer as e
from stepscope.trace.detect.steps import StepDetector


def train_without_loader(loop: Loop, steps: int, off: range) -> None:
    for number in range(steps):
        if number not in off:
            loop.accumulate(samples=8)
        else:
            loop.wait(6)
        if number + 1 in (off.start, off.stop):
            loop.record(e.DETAIL, "off" if number + 1 == off.start else "full")
        loop.update(3)


def test_steps_without_detail_and_without_a_loader_have_unknown_samples(loop: Loop) -> None:
    train_without_loader(loop, 8, off=range(3, 6))
    assert [row.detail for row in loop.sheet.rows] == ["full"] * 3 + ["off"] * 3 + ["full"] * 2
    assert loop.sheet.samples == [8, 8, 8, None, None, None, 8, 8]
    assert str(loop.sheet.rows[3]).split(",")[3] == ""


def test_an_epoch_does_not_count_what_was_not_seen_but_has_the_rate_of_the_others(
    loop: Loop,
) -> None:
    train_without_loader(loop, 8, off=range(3, 6))
    [timing] = loop.sheet.of("train")
    assert (timing.steps, timing.uncounted_steps) == (8, 3)
    assert timing.samples_known is None
    assert timing.samples_per_s == pytest.approx(8 * 8 / timing.total_s)
    assert timing.total_s == pytest.approx(8 * 0.009)
    row = epoch_values("train", timing, loss=None)
    assert row["samples"] == ""
    assert float(row["samples_per_s"]) == pytest.approx(8 / 0.009)


@pytest.mark.parametrize("kind", [StepDetector, EventByEvent])
def test_where_neither_batches_nor_calls_tell_nothing_is_known(
    loop: Loop, kind: type[StepDetector]
) -> None:
    with loop.iterating(length=5):
        for loss in range(5):
            loop.fetch(samples=None)
            loop.call(samples=None)
            loop.backward(loss=float(loss))
            loop.update()
    sheet = loop.detected(kind)
    assert sheet.samples == [None] * 5
    [(_, timing, loss)] = sheet.epochs
    assert (timing.samples_known, timing.samples_per_s) == (None, None)
    assert loss == 2.0, "the mean over steps, where there are no samples to weigh them by"


# loaders that are read one batch ahead


def train_epochs(loop: Loop, epochs: int, steps: int, off: range, *, ahead: bool) -> list[int]:
    """Train with batches of which the last of an epoch is smaller; return the samples of all."""
    sizes = [8] * (steps - 1) + [3]
    for epoch in range(epochs):
        key = 101 + epoch
        loop.iterate(key, length=steps, of=100)
        if ahead:
            loop.fetch(loader=key, samples=sizes[0])
        for number in range(steps):
            so_far = epoch * steps + number
            if off and so_far in (off.start, off.stop):
                loop.record(e.DETAIL, "off" if so_far in off else "full")
            if number + ahead < steps:
                loop.fetch(loader=key, samples=sizes[number + ahead])
            else:
                loop.exhaust(loader=key)
            if so_far not in off:
                loop.call(samples=sizes[number])
                loop.backward()
            loop.update()
        if not ahead:
            loop.exhaust(loader=key)
    return sizes * epochs


@pytest.mark.parametrize("kind", [StepDetector, EventByEvent])
@given(st.data(), st.booleans(), st.integers(2, 7))
def test_steps_without_detail_at_an_epochs_end_and_start_have_the_samples_of_their_batches(
    kind: type[StepDetector], data: st.DataObject, ahead: bool, steps: int
) -> None:
    loop = Loop()
    begin = data.draw(st.integers(1, 3 * steps))  # the first steps of a script have detail
    off = range(begin, data.draw(st.integers(begin, 4 * steps)))
    samples = train_epochs(loop, 4, steps, off, ahead=ahead)
    sheet = loop.detected(kind, at_once=data.draw(st.sampled_from([1, 7, 10**6])))
    assert sheet.samples == samples
    assert [timing.samples_known for timing in sheet.of("train")] == [8 * (steps - 1) + 3] * 4


def test_an_epoch_that_is_not_read_ahead_is_not_taken_for_one_that_was(loop: Loop) -> None:
    before = train_epochs(loop, 1, 4, range(0), ahead=True)
    loop.record(e.DETAIL, "off")
    with loop.iterating(length=3, of=200):
        for samples in (8, 8, 5):
            loop.fetch(samples=samples)
            loop.update()
    assert loop.sheet.samples == [*before, 8, 8, 5]


# tests

DECODER = 17
LEARN_WITH_TWO = f"call 1 {MODEL} samples=32, learn {DECODER} samples=32, "
EVAL = "grad=False training=False"

# What a loop does, the samples of its test, and the batches.
TESTS = {
    "samples that nobody tells are unknown": (
        f"train 2, iterate {TEST}, fetch 1 {TEST} samples=None, call 2 {EVAL} samples=None, "
        f"exhaust 1 {TEST}",
        (None, 1),
    ),
    "where batches do not tell, the calls do": (
        f"train 1, iterate {TEST}, "
        + "".join(
            f"fetch 1 {TEST} samples=None, call 2 {EVAL} samples={samples}, "
            f"call 1 {TEACHER} {EVAL} samples={samples}, "
            for samples in (8, 8, 5)
        )
        + f"exhaust 1 {TEST}",
        (21, 3),
    ),
    "a batch that is read ahead tells": (
        f"train 1, iterate {TEST}, fetch 1 {TEST} samples=4, exhaust 1 {TEST}, "
        f"call 2 {EVAL} samples=None",
        (4, 1),
    ),
    "a batch after which the test is broken off is not tested": (
        f"train 1, iterate {TEST} length=9, "
        + f"fetch 1 {TEST} samples=4, predict 2, " * 3
        + f"fetch 1 {TEST} samples=4, drop {TEST}, train 1 {OTHER_LOADER}",
        (12, 3),
    ),
    "of two modules one counts, although the other is called word by word": (
        LEARN_WITH_TWO * 3
        + "".join(
            f"call 2 {MODEL} {EVAL} samples={samples}, "
            + f"call 2 {DECODER} {EVAL} samples={samples}, " * 5
            for samples in (20, 20, 7)
        )
        + LEARN_WITH_TWO,
        (47, 3),
    ),
    "of two modules the one counts that counts in training": (
        f"{LEARN_WITH_TWO}call 2 {DECODER} {EVAL} samples=64, "
        f"call 2 {MODEL} {EVAL} samples=16, {LEARN_WITH_TWO}",
        (16, 1),
    ),
    "a module that does not tell leaves that to the other": (
        LEARN_WITH_TWO
        + f"call 2 {MODEL} {EVAL} samples=None, call 2 {DECODER} {EVAL} samples=16, " * 2
        + LEARN_WITH_TWO,
        (32, 2),
    ),
}


@pytest.mark.parametrize("name", TESTS)
def test_a_test_has_the_samples_that_its_model_was_called_with(loop: Loop, name: str) -> None:
    script, expected = TESTS[name]
    loop.play(script)
    [test] = loop.sheet.of("test")
    assert (test.samples_known, test.steps) == expected

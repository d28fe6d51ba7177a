"""What is an evaluation, and what it is taken out of."""

from __future__ import annotations

import pytest
from simulated_loop import OTHER_LOADER, SGD, TEACHER, TEST, Loop

from stepscope.trace import event_buffer as e


def test_an_evaluation_between_epochs_has_its_own_row_and_is_in_no_epoch(loop: Loop) -> None:
    for _ in range(2):
        loop.train(2)
        loop.test(3)
    assert loop.sheet.splits == ["train", "test", "train", "test"]
    assert loop.sheet.lasted_ms == [10] * 4
    for epoch in loop.sheet.of("train"):
        assert epoch.total_s == pytest.approx(0.026)
    for number, evaluation in enumerate(loop.sheet.of("test"), 1):
        assert evaluation.epoch == number
        assert (evaluation.loader_start_s, evaluation.loader_stop_s) == (0.002, 0.001)
        assert evaluation.total_s == pytest.approx(0.012)
        assert (evaluation.steps, evaluation.samples) == (3, 12)
        assert evaluation.data_s == pytest.approx(0.003)


def test_an_evaluation_inside_an_epoch_is_taken_out_of_both_sides(loop: Loop) -> None:
    loop.play("iterate ms=5, step, step, wait 0.5, test 3, wait 0.25, step, step, exhaust")
    assert loop.sheet.lasted_ms == [10, 10.75, 10, 10]
    assert loop.sheet.phases_ms(1)["other"] == 0.75
    assert loop.sheet.phases_ms(1)["data"] == 1
    [epoch], [evaluation] = loop.sheet.of("train"), loop.sheet.of("test")
    assert epoch.total_s == pytest.approx(0.005 + 0.04075 + 0.001)
    assert evaluation.total_s == epoch.evaluations_s == pytest.approx(0.012)
    assert epoch.samples == 32


ONE_SAMPLE = "grad=False training=False samples=1"

# What a loop does, how many evaluations that has, and how long its steps take without them.
EVALUATIONS = {
    "inside an accumulated step": (
        "iterate ms=5, " + "fetch, accumulate, test 3, step, " * 2 + "exhaust",
        (2, [17, 17]),
    ),
    "in a loop without any loader": ("learn, predict 20, " * 3, (3, [9, 9, 9])),
    "after an epoch that goes on": (
        "train 2, wait 5, predict 20, wait 5, learn, learn",
        (1, [10, 10, 20, 9]),
    ),
    "not of a module that is never trained": (
        f"predict 20 {TEACHER}, learn, learn",
        (0, [9, 9]),
    ),
    "not in a script that only predicts": ("predict 20, " * 3, (0, [])),
    "not in a pass over data without a model": (
        f"iterate {OTHER_LOADER} ms=5, "
        + f"fetch 1 {OTHER_LOADER}, wait 2, " * 3
        + f"exhaust 1 {OTHER_LOADER}, train 2",
        (0, [10, 10]),
    ),
    "with one sample, as in training": (
        f"learn samples=1, call 6 {ONE_SAMPLE}, " * 4,
        (4, [9] * 4),
    ),
    "with one sample now and then": (f"learn, learn, call 20 {ONE_SAMPLE}, " * 3, (3, [9] * 6)),
    "not by one who acts before the first update": (
        f"call 2 {ONE_SAMPLE}, learn, " * 3,
        (0, [9, 11, 11]),
    ),
    "once inside of what is taken out": (
        f"iterate, step, iterate {TEST}, fetch 1 {TEST}, call, "
        f"iterate {OTHER_LOADER}, fetch 1 {OTHER_LOADER}, predict, exhaust 1 {TEST}, exhaust",
        (2, [10]),
    ),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_is_taken_out_and_nothing_else(loop: Loop, name: str) -> None:
    script, expected = EVALUATIONS[name]
    loop.play(script)
    assert (len(loop.sheet.of("test")), loop.sheet.lasted_ms) == expected


def test_an_evaluation_before_training_belongs_to_epoch_0(loop: Loop) -> None:
    loop.test(2)  # a sanity check
    loop.train(2)
    assert [(split, timing.epoch) for split, timing, _ in loop.sheet.epochs] == [
        ("test", 0),
        ("train", 1),
    ]
    assert loop.sheet.began_ms[0] == 14


def test_an_evaluation_that_was_broken_off_ends_with_its_last_call(loop: Loop) -> None:
    test = f"iterate {TEST} ms=2, fetch 1 {TEST}, predict, wait 4, "  # its iterator stays alive
    loop.play("iterate ms=5, " + f"step, {test}" * 2 + "exhaust")
    assert loop.sheet.lasted_ms == [14, 14]
    assert [timing.total_s for timing in loop.sheet.of("test")] == pytest.approx([0.005, 0.005])


def test_an_evaluation_without_a_loader_is_taken_out_as_well(loop: Loop) -> None:
    step = "step, wait 0.5, predict 20, predict 20, wait 0.25, "
    loop.play(f"iterate ms=5, {step * 3}exhaust")
    assert loop.sheet.lasted_ms == [10.75] * 3
    assert len(loop.sheet.of("test")) == 3
    assert loop.sheet.of("test")[0].samples == 16


def test_a_test_without_a_loader_after_an_epoch_of_one_has_its_row(loop: Loop) -> None:
    loop.play("train 2, wait 10, predict 20, predict 20, " * 2)
    assert [(row.epoch, row.steps) for row in loop.sheet.of("test")] == [(1, 2), (2, 2)]
    assert [row.total_s for row in loop.sheet.of("test")] == pytest.approx([0.04, 0.04])
    assert loop.sheet.numbers == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_test_before_the_training_without_a_loader_belongs_to_epoch_0(loop: Loop) -> None:
    loop.play("predict 20, predict 20, wait 5, learn, learn")
    assert [(row.epoch, row.steps) for row in loop.sheet.of("test")] == [(0, 2)]
    assert loop.sheet.of("test")[0].total_s == pytest.approx(0.04)
    assert loop.sheet.lasted_ms == [9, 9]
    assert loop.sheet.of("train")[0].start_s == pytest.approx(0.045)


def test_who_acts_after_every_update_is_not_tested_there(loop: Loop) -> None:
    loop.play(("learn, " + f"call {ONE_SAMPLE}, " * 3) * 4)
    assert len(loop.sheet.of("test")) == 1, "the first may have been a test"
    assert loop.sheet.lasted_ms == [9, 9, 15, 15]
    assert loop.sheet.phases_ms(2)["forward"] == 8


def test_training_by_validation_batches_is_training(loop: Loop) -> None:
    loop.play(f"train 2, iterate {TEST} ms=2, fetch 1 {TEST}")
    loop.play(f"learn training=False, exhaust 1 {TEST}")
    assert loop.sheet.splits == ["train", "train"]
    assert loop.sheet.numbers == [(1, 1), (1, 2), (2, 1)]


def test_an_iterator_made_early_is_what_it_is_used_for(loop: Loop) -> None:
    step = f"step, wait 0.5, fetch 1 {TEST}, predict, "
    loop.play(f"iterate {TEST} ms=2, iterate ms=5, {step * 3}exhaust")
    assert loop.sheet.lasted_ms == [10.5] * 3
    assert loop.sheet.samples == [8] * 3
    assert [timing.total_s for timing in loop.sheet.of("test")] == pytest.approx([0.003] * 3)
    assert len(loop.sheet.of("train")) == 1


def test_a_teachers_call_after_an_evaluation_is_of_the_next_step(loop: Loop) -> None:
    step = f"call 2 {TEACHER} grad=False, learn"
    loop.play(f"{step}, predict 5, wait 10, " * 2 + step)
    assert [each.total_s for each in loop.sheet.of("test")] == pytest.approx([0.005] * 2)
    assert loop.sheet.phases_ms(1)["forward"] == 4


def test_an_evaluation_broken_off_inside_of_another_leaves_both_taken_out(loop: Loop) -> None:
    loop.play("iterate ms=5, step")
    for key in (TEST, OTHER_LOADER):  # the second is looked into, from the first
        loop.play(f"iterate {key} ms=2, fetch 1 {key}, predict")
    loop.play(f"fetch 1 {TEST}, predict, exhaust 1 {TEST}, step, exhaust")
    for row in loop.sheet.rows:
        assert sum(row.spent) == row.step_ns


@pytest.mark.parametrize("inside", [False, True])
def test_a_loader_that_is_read_one_batch_ahead_leaves_one_row(loop: Loop, inside: bool) -> None:
    loop.iterate()
    loop.step()
    if not inside:
        loop.exhaust()
    with loop.iterating(TEST, ms=2):
        loop.fetch(1, TEST, samples=4)
        for samples in (4, 3):
            loop.fetch(1, TEST, samples=samples)
            loop.move(0.5)
            loop.predict(2)
            loop.predict(1, TEACHER)
    loop.move(0.5)
    loop.predict(2)
    loop.predict(1, TEACHER)
    loop.wait(7)
    if inside:
        loop.step()
        loop.exhaust()
    [evaluation] = loop.sheet.of("test")
    assert (evaluation.steps, evaluation.samples) == (3, 11)
    assert evaluation.total_s == pytest.approx(0.0165)
    assert loop.sheet.lasted_ms == ([17, 10] if inside else [10])


def test_a_prediction_after_a_test_that_skipped_a_batch_is_none_of_it(loop: Loop) -> None:
    loop.play(f"train 1, iterate {TEST}, fetch 1 {TEST}, predict, fetch 1 {TEST}")
    loop.play(f"fetch 1 {TEST}, predict, exhaust 1 {TEST}, wait 50, predict 20")
    first, second = loop.sheet.of("test")
    assert (first.total_s, second.total_s) == (pytest.approx(0.008), pytest.approx(0.02))


@pytest.mark.parametrize("detail", ["full", "off"])
def test_a_test_before_the_last_batch_of_a_loader_read_ahead_does_not_end_the_epoch(
    loop: Loop, detail: str
) -> None:
    loop.iterate(ms=1, length=4, of=1)
    loop.fetch(1)
    for number in range(4):
        if number < 3:
            loop.fetch(1)
        if number == 1:
            loop.record(e.DETAIL, detail)
        if number >= 2 and detail == "off":
            loop.update(3)
        else:
            loop.learn()
        if number == 2:  # the last batch is fetched, and waits
            loop.test(2)
    loop.test(2, TEST + 1)
    assert loop.sheet.splits == ["test", "train", "test"]
    assert [row.epoch for row in loop.sheet.rows] == [1] * 4
    assert loop.sheet.samples == [8] * 4


def test_a_test_with_the_batch_of_an_iterator_of_its_own_begins_with_that(loop: Loop) -> None:
    test = f"iterate {TEST} ms=20 of=2, fetch 30 {TEST}, drop {TEST}, wait 4, predict 6"
    loop.play(f"iterate ms=1 of=1, step, step, step, {test}, step, exhaust")
    assert loop.sheet.lasted_ms == [10, 10, 10, 10], "the wait for it is none of the training"
    [test] = loop.sheet.of("test")
    assert (test.loader_start_s, test.data_s) == pytest.approx((0.02, 0.03))
    assert test.total_s == pytest.approx(0.06)


def test_a_batch_of_an_iterator_of_its_own_that_is_trained_with_is_in_its_step(loop: Loop) -> None:
    draw = f"iterate {TEST} ms=20 of=2, fetch 30 {TEST} samples=5, drop {TEST}"
    loop.play(f"iterate ms=1 of=1, step, {draw}, learn optimizer={SGD}, exhaust")
    assert loop.sheet.lasted_ms == [10 + 20 + 30 + 9]
    assert loop.sheet.splits == ["train"]

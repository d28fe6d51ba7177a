"""What is an evaluation, and what it is taken out of."""

from __future__ import annotations

import pytest
from simulated_loop import OTHER_LOADER, SGD, TEACHER, TEST, TRAIN, Loop

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
    with loop.iterating(ms=5):
        for number in range(4):
            loop.step()
            if number == 1:
                loop.wait(0.5)
                loop.test(3)
                loop.wait(0.25)
    assert loop.sheet.lasted_ms == [10, 10.75, 10, 10]
    assert loop.sheet.phases_ms(1)["other"] == 0.75
    assert loop.sheet.phases_ms(1)["data"] == 1
    [epoch], [evaluation] = loop.sheet.of("train"), loop.sheet.of("test")
    assert epoch.total_s == pytest.approx(0.005 + 0.04075 + 0.001)
    assert evaluation.total_s == pytest.approx(0.012)
    assert epoch.samples == 32


def test_an_evaluation_inside_an_accumulated_step_is_taken_out_of_it(loop: Loop) -> None:
    with loop.iterating(ms=5):
        for _ in range(2):
            loop.fetch(1)
            loop.accumulate()
            loop.test(3)
            loop.step()
    assert loop.sheet.lasted_ms == [17, 17]
    assert len(loop.sheet.of("test")) == 2


def test_an_evaluation_before_training_belongs_to_epoch_0(loop: Loop) -> None:
    loop.test(2)  # a sanity check
    loop.train(2)
    assert [(split, timing.epoch) for split, timing, _ in loop.sheet.epochs] == [
        ("test", 0),
        ("train", 1),
    ]
    assert loop.sheet.began_ms[0] == 14


def test_an_evaluation_that_was_broken_off_ends_with_its_last_call(loop: Loop) -> None:
    with loop.iterating(ms=5):
        for _ in range(2):
            loop.step()
            loop.iterate(TEST, ms=2)
            loop.fetch(1, TEST)
            loop.predict(2)
            loop.wait(4)  # and its iterator stays alive
    assert loop.sheet.lasted_ms == [14, 14]
    assert [timing.total_s for timing in loop.sheet.of("test")] == pytest.approx([0.005, 0.005])


def test_an_evaluation_without_a_loader_is_taken_out_as_well(loop: Loop) -> None:
    with loop.iterating(ms=5):
        for _ in range(3):
            loop.step()
            loop.wait(0.5)
            loop.predict(20)
            loop.predict(20)
            loop.wait(0.25)
    assert loop.sheet.lasted_ms == [10.75] * 3
    assert len(loop.sheet.of("test")) == 3
    assert loop.sheet.of("test")[0].samples == 16


def test_an_evaluation_in_a_loop_without_any_loader_is_taken_out_as_well(loop: Loop) -> None:
    for _ in range(3):
        loop.learn()
        loop.predict(20)
    assert loop.sheet.lasted_ms == [9, 9, 9]
    assert len(loop.sheet.of("test")) == 3


def test_a_test_without_a_loader_after_an_epoch_of_one_has_its_row(loop: Loop) -> None:
    for _ in range(2):
        loop.train(2)
        loop.wait(10)
        loop.predict(20)
        loop.predict(20)
    assert [(row.epoch, row.steps) for row in loop.sheet.of("test")] == [(1, 2), (2, 2)]
    assert [row.total_s for row in loop.sheet.of("test")] == pytest.approx([0.04, 0.04])
    assert loop.sheet.numbers == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_test_before_the_training_without_a_loader_belongs_to_epoch_0(loop: Loop) -> None:
    loop.predict(20)
    loop.predict(20)
    loop.wait(5)
    for _ in range(2):
        loop.learn()
    assert [(row.epoch, row.steps) for row in loop.sheet.of("test")] == [(0, 2)]
    assert loop.sheet.of("test")[0].total_s == pytest.approx(0.04)
    assert loop.sheet.lasted_ms == [9, 9]
    assert loop.sheet.of("train")[0].start_s == pytest.approx(0.045)


def test_a_module_that_is_never_trained_is_not_tested(loop: Loop) -> None:
    loop.predict(20, TEACHER)
    loop.learn()
    loop.learn()
    assert loop.sheet.of("test") == []
    assert loop.sheet.lasted_ms == [9, 9]


def test_a_script_that_only_predicts_has_no_rows(loop: Loop) -> None:
    for _ in range(3):
        loop.predict(20)
    assert (loop.sheet.rows, loop.sheet.epochs) == ([], [])


def test_a_test_with_gradients_on_does_not_say_how_many_samples_are_trained(loop: Loop) -> None:
    for _ in range(3):
        loop.call(5, training=False, samples=100)
        loop.learn()
    assert loop.sheet.samples == [8, 8, 8]


def test_a_loss_does_not_say_how_many_samples_its_model_has(loop: Loop) -> None:
    for _ in range(2):
        loop.call(2, training=False, samples=4)
        loop.call(1, TEACHER, samples=40)  # a module too, and always in training mode
        loop.backward(4)
        loop.update(3)
    assert loop.sheet.samples == [4, 4]


def test_a_test_after_an_epoch_that_goes_on_is_taken_out_of_it(loop: Loop) -> None:
    loop.train(2)
    loop.wait(5)
    loop.predict(20)
    loop.wait(5)
    loop.learn()
    loop.learn()
    assert len(loop.sheet.of("test")) == 1
    assert loop.sheet.lasted_ms[2:] == [20, 9]


def test_who_trains_with_one_sample_may_test_with_one(loop: Loop) -> None:
    for _ in range(4):
        loop.learn(samples=1)
        loop.call(6, grad=False, training=False, samples=1)
    assert len(loop.sheet.of("test")) == 4
    assert loop.sheet.lasted_ms == [9] * 4


def test_a_model_trained_in_eval_mode_says_how_many_samples_there_are(loop: Loop) -> None:
    for _ in range(2):
        loop.learn(training=False, samples=4)
    assert loop.sheet.samples == [4, 4]


def test_who_acts_after_every_update_is_not_tested_there(loop: Loop) -> None:
    for _ in range(4):
        loop.learn()
        for _ in range(3):
            loop.call(2, grad=False, training=False, samples=1)
    assert len(loop.sheet.of("test")) == 1, "the first may have been a test"
    assert loop.sheet.lasted_ms == [9, 9, 15, 15]
    assert loop.sheet.phases_ms(2)["forward"] == 8


def test_who_has_acted_before_the_first_update_is_never_tested(loop: Loop) -> None:
    for _ in range(3):
        loop.call(2, grad=False, training=False, samples=1)
        loop.learn()
    assert loop.sheet.of("test") == []
    assert loop.sheet.lasted_ms == [9, 11, 11]


def test_one_sample_now_and_then_is_an_evaluation(loop: Loop) -> None:
    for _ in range(3):
        loop.learn()
        loop.learn()
        loop.call(20, grad=False, training=False, samples=1)
    assert len(loop.sheet.of("test")) == 3
    assert loop.sheet.lasted_ms == [9] * 6


def test_a_teacher_is_no_evaluation(loop: Loop) -> None:
    with loop.iterating(ms=5):
        for _ in range(2):
            loop.fetch(1)
            loop.predict(6, TEACHER)
            loop.learn()
    assert loop.sheet.lasted_ms == [16, 16]
    assert loop.sheet.phases_ms(1)["forward"] == 8
    assert loop.sheet.of("test") == []


def test_a_pass_over_data_without_a_model_is_no_evaluation(loop: Loop) -> None:
    with loop.iterating(OTHER_LOADER, ms=5):  # mean and deviation of the data
        for _ in range(3):
            loop.fetch(1, OTHER_LOADER)
            loop.wait(2)
    loop.train(2)
    assert loop.sheet.splits == ["train"]
    assert loop.sheet.lasted_ms == [10, 10]


def test_training_by_validation_batches_is_training(loop: Loop) -> None:
    loop.train(2)
    with loop.iterating(TEST, ms=2):
        loop.fetch(1, TEST)
        loop.learn(training=False)
    assert loop.sheet.splits == ["train", "train"]
    assert loop.sheet.numbers == [(1, 1), (1, 2), (2, 1)]


def test_an_iterator_made_early_is_what_it_is_used_for(loop: Loop) -> None:
    loop.iterate(TEST, ms=2)
    with loop.iterating(TRAIN, ms=5):
        for _ in range(3):
            loop.step()
            loop.wait(0.5)
            loop.fetch(1, TEST)
            loop.predict(2)
    assert loop.sheet.lasted_ms == [10.5] * 3
    assert loop.sheet.samples == [8] * 3
    assert [timing.total_s for timing in loop.sheet.of("test")] == pytest.approx([0.003] * 3)
    assert len(loop.sheet.of("train")) == 1


def test_an_evaluation_inside_of_what_is_taken_out_is_not_taken_out_twice(loop: Loop) -> None:
    with loop.iterating(TRAIN):
        loop.step()
        with loop.iterating(TEST):
            loop.fetch(1, TEST)
            loop.call(2)  # with gradients, and nothing comes of them
            loop.iterate(OTHER_LOADER)
            loop.fetch(1, OTHER_LOADER)
            loop.predict(2)  # not read to its end
    assert loop.sheet.lasted_ms == [10]
    assert sum(loop.sheet.phases_ms().values()) == 10


def test_a_teachers_call_after_an_evaluation_is_of_the_next_step(loop: Loop) -> None:
    for _ in range(2):
        loop.call(2, TEACHER, grad=False)
        loop.learn()
        loop.predict(5)
        loop.wait(10)
    loop.call(2, TEACHER, grad=False)
    loop.learn()
    assert [each.total_s for each in loop.sheet.of("test")] == pytest.approx([0.005] * 2)
    assert loop.sheet.phases_ms(1)["forward"] == 4


def test_an_evaluation_broken_off_inside_of_another_leaves_both_taken_out(loop: Loop) -> None:
    with loop.iterating(ms=5):
        loop.step()
        for loader in (TEST, OTHER_LOADER):  # the second is looked into, from the first
            loop.iterate(loader, ms=2)
            loop.fetch(1, loader)
            loop.predict(2)
        loop.fetch(1, TEST)
        loop.predict(2)
        loop.exhaust(1, TEST)
        loop.step()
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


def test_a_batch_after_which_a_test_is_broken_off_is_not_tested(loop: Loop) -> None:
    loop.train(1)
    loop.iterate(TEST, length=9)
    for _ in range(3):
        loop.fetch(1, TEST, samples=4)
        loop.predict(2)
    loop.fetch(1, TEST, samples=4)
    loop.drop(TEST)
    loop.train(1, OTHER_LOADER)
    [evaluation] = loop.sheet.of("test")
    assert (evaluation.steps, evaluation.samples) == (3, 12)


def test_where_batches_do_not_tell_their_samples_the_calls_do(loop: Loop) -> None:
    loop.train(1)
    with loop.iterating(TEST):
        for samples in (8, 8, 5):
            loop.fetch(1, TEST, samples=None)
            loop.call(2, grad=False, training=False, samples=samples)
            loop.call(1, TEACHER, grad=False, training=False, samples=samples)
    [evaluation] = loop.sheet.of("test")
    assert evaluation.samples == 21


def test_a_prediction_after_a_test_that_skipped_a_batch_is_none_of_it(loop: Loop) -> None:
    loop.train(1)
    with loop.iterating(TEST):
        for number in range(3):
            loop.fetch(1, TEST)
            if number != 1:
                loop.predict(2)
    loop.wait(50)
    loop.predict(20)
    first, second = loop.sheet.of("test")
    assert (first.total_s, second.total_s) == (pytest.approx(0.008), pytest.approx(0.02))


def test_a_test_of_one_batch_that_is_read_ahead_has_its_samples(loop: Loop) -> None:
    loop.train(1)
    with loop.iterating(TEST):
        loop.fetch(1, TEST, samples=4)
    loop.call(2, grad=False, training=False, samples=None)
    [evaluation] = loop.sheet.of("test")
    assert evaluation.samples == 4


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
    with loop.iterating(ms=1, of=1):
        for number in range(4):
            loop.step()
            if number == 2:
                loop.iterate(TEST, ms=20, of=2)
                loop.fetch(30, TEST)
                loop.drop(TEST)
                loop.wait(4)
                loop.predict(6)
    assert loop.sheet.lasted_ms == [10, 10, 10, 10], "the wait for it is none of the training"
    [test] = loop.sheet.of("test")
    assert (test.loader_start_s, test.data_s) == pytest.approx((0.02, 0.03))
    assert test.total_s == pytest.approx(0.06)


def test_a_batch_of_an_iterator_of_its_own_that_is_trained_with_is_in_its_step(loop: Loop) -> None:
    with loop.iterating(ms=1, of=1):
        loop.step()
        loop.iterate(TEST, ms=20, of=2)
        loop.fetch(30, TEST, samples=5)
        loop.drop(TEST)
        loop.learn(optimizer=SGD)
    assert loop.sheet.lasted_ms == [10 + 20 + 30 + 9]
    assert loop.sheet.splits == ["train"]

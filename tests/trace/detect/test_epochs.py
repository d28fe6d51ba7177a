"""What an epoch is, and which loader's; what comes along with its steps."""

from __future__ import annotations

import pytest
from scripted_clock import MS
from simulated_loop import ADAM, MODEL, OTHER_LOADER, SGD, TEST, TRAIN, Loop, Sheet, fields_of

from stepscope.meter.step_rows import LoadTiming, load_of_step
from stepscope.trace import event_buffer as e
from stepscope.trace.detect.steps import StepDetector


def test_a_loader_that_was_looked_into_begins_anew_with_the_training(loop: Loop) -> None:
    loop.iterate(ms=5)
    loop.fetch(1)
    loop.wait(100)  # a picture of the first batch, as in many a tutorial
    for _ in range(2):
        loop.train(2)
    assert loop.sheet.numbers == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert loop.sheet.of("train")[0].start_s == pytest.approx(0.106)
    assert loop.sheet.samples == [8] * 4


def test_a_loader_that_was_looked_into_by_another_iterator_begins_anew_too(loop: Loop) -> None:
    loop.play("iterate ms=5 of=7, fetch")  # and this iterator lives on
    for key in (101, 102):
        loop.play(f"iterate {key} ms=5 of=7, step {key}, exhaust 1 {key}")
    assert [(row.epoch, row.samples) for row in loop.sheet.rows] == [(1, 8), (2, 8)]
    assert loop.sheet.of("train")[0].start_s == pytest.approx(0.006)


# What a loop does; of each step: its epoch, how long it takes, and its samples; how many tests.
EPOCHS = {
    "updates without a loader before the first epoch are an epoch of their own": (
        "learn, learn, train 2",
        ([1, 1, 2, 2], [9, 9, 10, 10], [8] * 4),
        0,
    ),
    "a training that begins its loader anew has left a search for a learning rate": (
        "iterate ms=5 of=7, step, step, wait 100, "
        "iterate 101 ms=5 of=7, step 101, exhaust 1 101, "
        "iterate 102 ms=5 of=7, step 102, exhaust 1 102",
        ([1, 1, 2, 3], [10] * 4, [8] * 4),
        0,
    ),
    "a new optimiser after a loader's end begins an epoch with all of the data at once": (
        f"make {ADAM}, train 2, wait 1000, make {SGD}, " + f"learn {MODEL} {SGD} samples=16, " * 3,
        ([1, 1, 2, 2, 2], [10, 10, 9, 9, 9], [8, 8, 16, 16, 16]),
        0,
    ),
    "an update after a loader's end is of its epoch": (
        f"make {ADAM}, make {SGD}, " + f"train 2, learn {MODEL} {SGD}, " * 2,
        ([1, 1, 1, 2, 2, 2], [10, 10, 10] * 2, [8] * 6),
        0,
    ),
    "batches left over at an epoch's end belong to its last step": (
        (
            "iterate ms=5, "
            + "fetch, accumulate, fetch, learn, " * 2
            + "fetch, accumulate, exhaust, "
        )
        * 2,
        ([1, 1, 2, 2], [17, 24] * 2, [16, 24] * 2),
        0,
    ),
    "a model that was tried before a closure calls it was not trained then": (
        f"call, wait 1, make {ADAM}, wait 50, " + "begin_update, accumulate, end_update, " * 2,
        ([1, 1], [6, 6], [8, 8]),
        0,
    ),
    "two ways through one loader at once are one epoch": (
        "iterate 101 of=7, iterate 102 of=7, " + "fetch 1 101, step 102, " * 3 + "exhaust 1 101",
        ([1] * 3, [11] * 3, [16] * 3),
        0,
    ),
    "an evaluation on the training loader does not end the epoch": (
        "iterate ms=5 of=7, "
        + "".join(
            f"step, iterate {key} ms=2 of=7, fetch 1 {key}, predict, exhaust 1 {key}, "
            for key in (100, 101, 102)
        )
        + "exhaust",
        ([1] * 3, [10] * 3, [8] * 3),
        3,
    ),
    "two loaders side by side are one epoch": (
        f"iterate ms=5, iterate {OTHER_LOADER} ms=5, "
        + f"fetch, fetch 2 {OTHER_LOADER}, learn, " * 3
        + f"exhaust, drop {OTHER_LOADER}",
        ([1] * 3, [17, 12, 12], [16] * 3),
        0,
    ),
    "a batch trained after the loader's end is a step of its epoch": (
        "iterate ms=5, fetch, step, exhaust, learn, wait 30, test 2",
        ([1, 1], [11, 10], [8, 8]),
        1,
    ),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_a_step_belongs_to_the_epoch_of_its_loader(loop: Loop, name: str) -> None:
    script, steps, tests = EPOCHS[name]
    loop.play(script)
    epochs = [row.epoch for row in loop.sheet.rows]
    assert (epochs, loop.sheet.lasted_ms, loop.sheet.samples) == steps
    assert len(loop.sheet.of("train")) == max(epochs)
    assert len(loop.sheet.of("test")) == tests


def test_a_loader_that_was_let_go_of_ends_its_epoch(loop: Loop) -> None:
    for key in (TRAIN, OTHER_LOADER):
        loop.play(f"iterate {key} ms=5, step {key}, step {key}, wait 3, drop {key}, wait 100")
    assert loop.sheet.lasted_ms == [10, 13, 10, 13]
    assert [timing.total_s for timing in loop.sheet.of("train")] == pytest.approx([0.028, 0.028])


def test_a_loop_that_never_asks_for_one_more_batch_ends_its_epoch_all_the_same(loop: Loop) -> None:
    for key in (TRAIN, OTHER_LOADER):
        loop.play(f"iterate {key} ms=5 length=2, step {key}, step {key}, wait 50, test 2")
    assert loop.sheet.splits == ["train", "test", "train", "test"]
    assert [row.epoch for row in loop.sheet.rows] == [1, 1, 2, 2]
    assert loop.sheet.lasted_ms == [10] * 4, "what comes after the last update is no step's"


def test_a_script_that_ends_in_the_middle_of_an_epoch_leaves_its_steps(loop: Loop) -> None:
    loop.play("iterate ms=5, step, step, fetch, call")
    assert loop.sheet.lasted_ms == [10, 10]
    [epoch] = loop.sheet.of("train")
    assert epoch.total_s == pytest.approx(0.025)


def test_steps_complete_are_known_before_their_rows_are_written(loop: Loop) -> None:
    loop.iterate()
    detector = StepDetector(Sheet(), 0)
    seen = []
    for _ in range(3):
        loop.step()
        detector.take(fields_of(loop.events))
        loop.events.clear()
        seen.append(detector.steps_seen)
    assert seen == [0, 1, 2], "a step with a loader is over when the next batch is asked for"
    loop.record(e.FETCH, TRAIN)
    detector.take(fields_of(loop.events))
    assert detector.steps_seen == 3


def test_a_loss_is_the_mean_over_samples_of_an_epoch(loop: Loop) -> None:
    loop.play("iterate, fetch, learn loss=1.0, fetch, learn loss=2.0")
    loop.play("fetch samples=4, learn loss=4.0, exhaust")
    [(_, _, loss)] = loop.sheet.epochs
    assert loss == pytest.approx((8 * 1 + 8 * 2 + 4 * 4) / 20)


def test_the_loaders_account_of_a_batch_comes_with_its_step(loop: Loop) -> None:
    with loop.iterating(TRAIN):
        loop.iterate(OTHER_LOADER)
        loop.fetch(1, TRAIN, load=LoadTiming(1, start_ns=2 * MS, wall_ns=3 * MS, cpu_ns=2 * MS))
        loop.fetch(1, OTHER_LOADER, load=LoadTiming(0, 5 * MS, wall_ns=4 * MS, cpu_ns=1 * MS))
        loop.learn()
        loop.step()
    first, second = loop.sheet.rows
    assert first.load == (1, 2 * MS, 7 * MS, 3 * MS)
    assert second.load is None, "what nobody accounted for is unknown, not 0"


def test_the_cpu_time_of_several_batches_is_unknown_if_one_is() -> None:
    known, unknown = (0, 5, 30, 20), (1, 9, 40, None)
    assert load_of_step([known, known], origin_ns=5) == (0, 0, 60, 40)
    assert load_of_step([known, unknown, known], origin_ns=5) == (0, 0, 100, None)
    assert load_of_step([unknown], origin_ns=5) == (1, 4, 40, None)


# detail


def test_detail_goes_with_the_steps_that_begin_under_it(loop: Loop) -> None:
    loop.play("iterate ms=5, " + "step, wait 0.25, " * 2)
    loop.play("detail 'off', " + "fetch, wait 6, update, wait 0.25, " * 2)
    loop.play("detail 'full', " + "step, wait 0.25, " * 2 + "exhaust")
    assert [row.detail for row in loop.sheet.rows] == ["full", "full", "off", "off", "full", "full"]
    assert loop.sheet.lasted_ms == [10.25] * 6
    assert str(loop.sheet.rows[2]).split(",")[4:7] == ["", "", ""]


def test_detail_without_a_loader_turns_between_two_updates(loop: Loop) -> None:
    for detail in ("layers", "full"):
        loop.play(f"learn, accumulate, begin_update, wait 3, detail '{detail}', end_update")
    loop.play("learn, learn")
    details = [row.detail for row in loop.sheet.rows]
    assert details == ["full", "full", "layers", "layers", "full", "full"]


# devices


def test_device_columns_partition_the_devices_time() -> None:
    loop = Loop(on_device=True)
    step = "fetch 4, call work=10, backward 3 work=20, update 1, "
    loop.play(f"iterate ms=5, {step * 3}exhaust")
    first, second, third = (row.device for row in loop.sheet.rows)
    assert first == pytest.approx((0, 0.010, 0.020, 0, 0.004, 0)), "idle: the first wait for data"
    for later in (second, third):
        assert later == pytest.approx((0, 0.010, 0.020, 0, 0, 0)), "its queue is never empty again"


def test_a_loss_in_any_closure_is_part_of_the_devices_forward_pass() -> None:
    loop = Loop(on_device=True)
    assert loop.device is not None
    with loop.iterating(stop_ms=0):
        loop.fetch(0)
        with loop.stepping():
            for _ in range(3):
                loop.call(0, work=2)
                loop.device.work(3)
                loop.backward(0, work=4)
    [step] = loop.sheet.rows
    assert step.device == pytest.approx((0, 0.015, 0.012, 0, 0, 0))


def test_steps_are_written_when_the_device_has_reached_their_end() -> None:
    loop = Loop(on_device=True)
    sheet = Sheet()
    detector = StepDetector(sheet, 0)
    loop.play("iterate, " + "fetch, call work=50, backward, update, " * 3)
    detector.take(fields_of(loop.events))
    assert sheet.rows == []
    assert loop.device is not None
    assert loop.device.now_ms == 0, "nobody made it hurry"
    loop.device.now_ms = 60
    detector.take([])
    assert len(sheet.rows) == 1
    detector.finish()
    assert len(sheet.rows) == 3


def test_the_devices_work_for_an_evaluation_is_no_steps() -> None:
    loop = Loop(on_device=True)
    step = "fetch 4, call work=10, backward 3 work=20, update 1, "
    test = f"fetch 1 {TEST}, call grad=False training=False work=40, "
    loop.play("iterate ms=5, " + f"{step}iterate {TEST}, {test}exhaust 1 {TEST}, " * 2 + "exhaust")
    for row in loop.sheet.rows:
        assert row.device is not None
        assert sum(row.device[1:3]) == pytest.approx(0.030)
    assert len(loop.sheet.of("test")) == 2


def test_an_iterator_made_long_before_the_training_begins_when_it_is_used(loop: Loop) -> None:
    loop.play("iterate ms=5, wait 1700, step, step, exhaust")  # a model is built
    assert loop.sheet.lasted_ms == [10, 10]
    [epoch] = loop.sheet.of("train")
    assert epoch.loader_start_s == pytest.approx(0.005)
    assert epoch.total_s == pytest.approx(0.026)


def test_a_loader_that_goes_on_after_its_last_batch_has_as_many_epochs_as_tests(loop: Loop) -> None:
    """Some repeat their batches without end, and give as many at a time as they say they have."""
    loop.iterate(length=3, of=1)
    for _ in range(3):
        for _ in range(3):
            loop.step()
        loop.test(2)
    assert [timing.steps for timing in loop.sheet.of("train")] == [3, 3, 3]
    assert loop.sheet.splits == ["train", "test"] * 3

"""The recognizer, played loops of every kind by a clock that moves only when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.measure import events as e
from stepscope.measure.loading import LoadTiming
from stepscope.measure.recognize import Recognizer
from stepscope.measure.steps import EpochTiming, StepRow

MS = 1_000_000
MODEL, TEACHER, CRITIC = 11, 12, 13
ADAM, SGD = 21, 22
TRAIN, TEST, OTHER_LOADER = 1, 2, 3


@dataclass
class Sheet:
    """A sink that keeps what it is given."""

    steps: list[StepRow] = field(default_factory=list)
    epochs: list[tuple[str, EpochTiming, float | None]] = field(default_factory=list)

    def step(self, row: StepRow) -> None:
        self.steps.append(row)

    def epoch(self, split: str, timing: EpochTiming, loss: float | None) -> None:
        self.epochs.append((split, timing, loss))

    def of(self, split: str) -> list[EpochTiming]:
        return [timing for name, timing, _ in self.epochs if name == split]

    @property
    def lasted_ms(self) -> list[float]:
        return [row.step_ns / MS for row in self.steps]

    @property
    def began_ms(self) -> list[float]:
        return [row.start_ns / MS for row in self.steps]

    def phases_ms(self, step: int = 0) -> dict[str, float]:
        """The phases of a step that took any time."""
        names = ("data", "transfer", "forward", "backward", "optimizer", "other")
        spent = self.steps[step].spent
        return {name: ns / MS for name, ns in zip(names, spent, strict=True) if ns}

    def closure(self) -> float:
        """Parts over the other clock, of all training epochs."""
        trained = self.of("train")
        steps_s = sum(row.step_ns for row in self.steps) / 1e9
        parts_s = sum(timing.loader_start_s + timing.loader_stop_s for timing in trained)
        return (steps_s + parts_s) / sum(timing.total_s for timing in trained)


class Loop:
    """A training loop: every call is something that it does, and how many ms it takes."""

    def __init__(self, device: ScriptedDevice | None = None, ahead_ns: int = 0) -> None:
        self.now = 0
        self.device = device
        self.ahead_ns = ahead_ns
        self.events: list[e.Event] = []

    def __repr__(self) -> str:
        names = {value: name for name, value in vars(e).items() if name.isupper()}
        lines = [f"{time / MS:g} {names[k]} {who} {what}" for k, time, who, what, _ in self.events]
        return "\n".join(["", *lines])

    @property
    def other_clock(self) -> int:
        return self.now + self.ahead_ns

    def wait(self, ms: float) -> None:
        self.now += round(ms * MS)

    def note(self, kind: int, subject: Any = None, detail: Any = None) -> None:
        mark = None if self.device is None else self.device.mark(self.now / MS)
        self.events.append((kind, self.now, subject, detail, mark))

    def iterate(
        self,
        loader: int = TRAIN,
        ms: float = 0,
        length: int | None = None,
        of: int | None = None,
    ) -> None:
        self.note(e.ITERATE, loader, self.other_clock)
        self.wait(ms)
        self.note(e.ITERATED, loader, e.Iteration(length, of))

    def fetch(
        self,
        ms: float = 1,
        loader: int = TRAIN,
        samples: int | None = 8,
        load: LoadTiming | None = None,
    ) -> None:
        self.note(e.FETCH, loader, self.other_clock)
        self.wait(ms)
        self.note(e.FETCHED, loader, (samples, load))

    def exhaust(self, ms: float = 1, loader: int = TRAIN) -> None:
        self.note(e.FETCH, loader, self.other_clock)
        self.wait(ms)
        self.note(e.EXHAUSTED, loader, self.other_clock)

    def drop(self, loader: int = TRAIN) -> None:
        self.note(e.DROPPED, loader, self.other_clock)

    def move(self, ms: float = 1) -> None:
        self.note(e.MOVE)
        self.wait(ms)
        self.note(e.MOVED)

    def call(
        self,
        ms: float = 2,
        module: int = MODEL,
        *,
        grad: bool = True,
        training: bool = True,
        samples: int | None = 8,
        work: float = 0,
    ) -> None:
        self.note(e.CALL, module, e.Call(grad, training, samples, self.other_clock))
        if self.device is not None:
            self.device.work(self.now / MS, work)
        self.wait(ms)
        self.note(e.CALLED, grad, self.other_clock)

    def predict(self, ms: float = 2, module: int = MODEL) -> None:
        self.call(ms, module, grad=False, training=False)

    def backward(self, ms: float = 4, loss: float | None = 1.0, work: float = 0) -> None:
        self.note(e.BACKWARD, None, self.other_clock)
        if self.device is not None:
            self.device.work(self.now / MS, work)
        self.wait(ms)
        self.note(e.BACKWARD_DONE, None, None if loss is None else (lambda: loss))

    @contextmanager
    def stepping(self, optimizer: int = ADAM) -> Iterator[None]:
        self.note(e.STEP, optimizer, self.other_clock)
        yield
        self.note(e.STEPPED, optimizer, self.other_clock)

    def update(self, ms: float = 3, optimizer: int = ADAM) -> None:
        with self.stepping(optimizer):
            self.wait(ms)

    def zero(self, ms: float = 1) -> None:
        self.note(e.ZERO)
        self.wait(ms)
        self.note(e.ZEROED)

    def own(self, ms: float) -> None:
        self.note(e.OWN)
        self.wait(ms)
        self.note(e.OWN_DONE)

    def learn(self) -> None:
        """What follows a fetch in the plainest loop: 9 ms."""
        self.call(2)
        self.backward(4)
        self.update(3)

    def train(self, batches: int, loader: int = TRAIN) -> None:
        """An epoch of 10 ms a step, 5 ms before and 1 ms after."""
        self.iterate(loader, ms=5)
        for _ in range(batches):
            self.fetch(1, loader)
            self.learn()
        self.exhaust(1, loader)

    def test(self, batches: int, loader: int = TEST) -> None:
        """An evaluation of 3 ms a batch, 2 ms before and 1 ms after."""
        self.iterate(loader, ms=2)
        for _ in range(batches):
            self.fetch(1, loader, samples=4)
            self.predict(2)
        self.exhaust(1, loader)

    def recognized(self) -> Sheet:
        sheet = Sheet()
        recognizer = Recognizer(sheet, 0)
        recognizer.take(self.events)
        recognizer.finish()
        return sheet


class ScriptedMark:
    def __init__(self, device: ScriptedDevice, at_ms: float) -> None:
        self.device, self.at_ms = device, at_ms

    def reached(self) -> bool:
        return self.device.now_ms >= self.at_ms

    def wait(self) -> None:
        self.device.now_ms = max(self.device.now_ms, self.at_ms)

    def seconds_until(self, later: ScriptedMark) -> float:
        return (later.at_ms - self.at_ms) / 1000


class ScriptedDevice:
    """A device that takes its own time for the work that is put into its queue."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.queue_ends_ms = 0.0

    def work(self, now_ms: float, milliseconds: float) -> None:
        self.queue_ends_ms = max(self.queue_ends_ms, now_ms) + milliseconds

    def mark(self, now_ms: float) -> ScriptedMark:
        self.queue_ends_ms = max(self.queue_ends_ms, now_ms)
        return ScriptedMark(self, self.queue_ends_ms)


@pytest.fixture
def loop() -> Loop:
    return Loop()


# steps


def test_a_step_lasts_from_a_fetch_to_the_fetch_after_the_update(loop: Loop) -> None:
    loop.wait(100)
    loop.iterate(ms=5)
    for _ in range(2):
        loop.fetch(1)
        loop.move(1)
        loop.call(2)
        loop.wait(0.5)  # the loss
        loop.backward(4)
        loop.wait(0.25)
        loop.update(3)
        loop.zero(1)
        loop.wait(7)  # printing
    loop.exhaust(2)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [19.75, 19.75]
    assert sheet.began_ms == [105, 124.75]
    assert sheet.phases_ms(1) == {
        "data": 1,
        "transfer": 1,
        "forward": 2.5,
        "backward": 4,
        "optimizer": 4,
        "other": 7.25,
    }
    [epoch] = sheet.of("train")
    assert (epoch.loader_start_s, epoch.loader_stop_s) == (0.005, 0.002)
    assert epoch.total_s == pytest.approx(0.005 + 2 * 0.01975 + 0.002)
    assert (epoch.steps, epoch.samples, epoch.start_s) == (2, 16, 0.1)


def test_time_between_the_loaders_start_and_the_first_fetch_is_the_first_steps(loop: Loop) -> None:
    loop.iterate(ms=5)
    loop.wait(40)  # a progress bar
    loop.fetch(1)
    loop.learn()
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.lasted_ms == [50]
    assert sheet.phases_ms() == {
        "data": 1,
        "forward": 2,
        "backward": 4,
        "optimizer": 3,
        "other": 40,
    }


def test_batches_that_lead_to_one_update_are_one_step(loop: Loop) -> None:
    loop.iterate()
    for number in range(6):
        loop.fetch(1)
        loop.call(2)
        loop.backward(4, loss=0.25)
        if number % 3 == 2:
            loop.update(3)
            loop.zero(1)
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.lasted_ms == [25, 25]
    assert [row.samples for row in sheet.steps] == [24, 24]
    assert [row.loss for row in sheet.steps] == [0.75, 0.75], "parts of one loss"
    assert sheet.phases_ms() == {"data": 3, "forward": 6, "backward": 12, "optimizer": 4}


def test_batches_left_over_at_an_epochs_end_belong_to_its_last_step(loop: Loop) -> None:
    for _ in range(2):
        loop.iterate(ms=5)
        for number in range(5):
            loop.fetch(1)
            loop.call(2)
            loop.backward(4)
            if number % 2:
                loop.update(3)
        loop.exhaust(1)
    sheet = loop.recognized()
    assert [(row.epoch, row.step) for row in sheet.steps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert sheet.lasted_ms == [17, 24, 17, 24]
    assert [row.samples for row in sheet.steps] == [16, 24, 16, 24]
    assert sheet.closure() == pytest.approx(1)


def test_two_optimisers_of_one_iteration_are_one_step(loop: Loop) -> None:
    loop.iterate()
    for _ in range(2):
        loop.fetch(1)
        for module, optimizer in ((CRITIC, ADAM), (MODEL, SGD)):
            loop.zero(1)
            loop.call(2, module)
            loop.backward(4, loss=0.5)
            loop.update(3, optimizer)
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.lasted_ms == [21, 21]
    assert sheet.phases_ms(1) == {"data": 1, "forward": 4, "backward": 8, "optimizer": 8}
    assert [row.samples for row in sheet.steps] == [8, 8]


def test_two_optimisers_without_a_loader_are_one_step(loop: Loop) -> None:
    for _ in range(3):
        for module, optimizer in ((CRITIC, ADAM), (MODEL, SGD)):
            loop.call(2, module)
            loop.backward(4)
            loop.update(3, optimizer)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [18, 18, 18]
    assert [row.samples for row in sheet.steps] == [8, 8, 8]


def test_updates_of_one_optimiser_without_a_fetch_are_steps_of_their_own(loop: Loop) -> None:
    loop.iterate()
    loop.fetch(1)
    for _ in range(3):
        loop.learn()
    loop.wait(5)
    loop.fetch(1)
    loop.learn()
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.lasted_ms == [10, 9, 14, 10], "from the end of one update to the end of the next"
    assert sheet.closure() == pytest.approx(1)


def test_without_a_loader_everything_is_one_epoch(loop: Loop) -> None:
    loop.wait(50)
    for _ in range(3):
        loop.learn()
        loop.wait(6)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [9, 15, 15], "what comes after the last update is no step's"
    assert sheet.began_ms == [50, 59, 74]
    [epoch] = sheet.of("train")
    assert epoch.total_s == pytest.approx(0.039)
    assert epoch.samples == 24, "what the model was called with"


def test_a_loop_that_calls_no_module_begins_with_its_first_backward_pass(loop: Loop) -> None:
    for _ in range(2):
        loop.wait(10)
        loop.backward(4)
        loop.update(3)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [7, 17]
    assert [row.samples for row in sheet.steps] == [0, 0]


def test_an_optimiser_alone_makes_steps(loop: Loop) -> None:
    for _ in range(2):
        loop.update(3)
    assert loop.recognized().lasted_ms == [3, 3]


# phases


def test_zero_grad_belongs_to_the_optimiser_wherever_it_stands(loop: Loop) -> None:
    loop.iterate()
    loop.fetch(1)
    loop.zero(1)
    loop.call(2)
    loop.zero(1)
    loop.wait(0.5)
    loop.backward(4)
    loop.update(3)
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.phases_ms() == {"data": 1, "optimizer": 5, "forward": 2.5, "backward": 4}


def test_the_loss_between_call_and_backward_is_forward(loop: Loop) -> None:
    loop.iterate()
    loop.fetch(1)
    loop.call(2)
    loop.wait(3)
    loop.call(2, CRITIC)
    loop.wait(3)
    loop.backward(4)
    loop.wait(8)
    loop.update(3)
    loop.exhaust()
    assert loop.recognized().phases_ms() == {
        "data": 1,
        "forward": 10,
        "backward": 4,
        "other": 8,
        "optimizer": 3,
    }


def test_a_move_inside_a_forward_pass_is_a_move(loop: Loop) -> None:
    loop.iterate()
    loop.fetch(1)
    loop.call(2)
    loop.move(5)  # the labels
    loop.wait(1)
    loop.backward(4)
    loop.update(3)
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.phases_ms() == {
        "data": 1,
        "forward": 3,
        "transfer": 5,
        "backward": 4,
        "optimizer": 3,
    }


def test_phases_inside_a_closure_are_phases_and_the_rest_is_the_optimisers(loop: Loop) -> None:
    loop.iterate()
    for _ in range(2):
        loop.fetch(1)
        with loop.stepping():
            for _ in range(3):
                loop.wait(0.5)
                loop.zero(1)
                loop.call(2)
                loop.backward(4, loss=1.0)
                loop.wait(5)  # the line search
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.lasted_ms == [38.5, 38.5]
    assert sheet.phases_ms(1) == {"data": 1, "forward": 6, "backward": 12, "optimizer": 19.5}


def test_a_closure_that_goes_through_all_of_the_data_is_one_update(loop: Loop) -> None:
    for _ in range(2):
        with loop.stepping():
            for key in (TRAIN, OTHER_LOADER):
                loop.iterate(key, ms=5)
                for _ in range(3):
                    loop.fetch(1, key)
                    loop.call(2)
                    loop.backward(4)
                loop.exhaust(1, key)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [54, 54]
    assert sheet.phases_ms(1) == {"data": 18, "forward": 12, "backward": 24}
    assert [row.samples for row in sheet.steps] == [48, 48]
    assert sheet.closure() == pytest.approx(1)


def test_updates_inside_a_backward_pass_leave_the_rest_of_it_as_it_is(loop: Loop) -> None:
    loop.iterate()
    for _ in range(2):
        loop.fetch(1)
        loop.call(2)
        loop.note(e.BACKWARD, None, loop.other_clock)
        for weight in (ADAM, SGD):
            loop.wait(4)
            loop.update(3, weight)
        loop.wait(4)
        loop.note(e.BACKWARD_DONE, None, lambda: 1.0)
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.lasted_ms == [21, 21]
    assert sheet.phases_ms(1) == {"data": 1, "forward": 2, "backward": 12, "optimizer": 6}


def test_a_scaler_around_an_optimiser_is_one_update(loop: Loop) -> None:
    loop.iterate()
    for _ in range(2):
        loop.fetch(1)
        loop.call(2)
        loop.backward(4)
        with loop.stepping():
            loop.wait(1)
            loop.update(3)
            loop.wait(1)
    loop.exhaust()
    sheet = loop.recognized()
    assert sheet.lasted_ms == [12, 12]
    assert sheet.phases_ms()["optimizer"] == 5


def test_our_own_work_is_other_and_never_a_wait_for_data(loop: Loop) -> None:
    loop.iterate()
    loop.fetch(1)
    loop.learn()
    loop.own(30)
    loop.fetch(1)
    loop.note(e.OWN)
    loop.wait(30)
    loop.note(e.OWN_DONE)
    loop.learn()
    loop.exhaust()
    sheet = loop.recognized()
    for step in (0, 1):
        assert sheet.phases_ms(step)["other"] == 30
        assert sheet.phases_ms(step)["data"] == 1


def test_an_update_that_raised_does_not_spoil_the_steps_after_it(loop: Loop) -> None:
    loop.iterate()
    loop.fetch(1)
    loop.call(2)
    loop.backward(4)
    loop.note(e.STEP, ADAM, loop.other_clock)
    loop.wait(1)  # it raised, the loop caught it and went on
    for _ in range(2):
        loop.fetch(1)
        loop.learn()
        loop.wait(5)
    loop.exhaust()
    sheet = loop.recognized()
    assert len(sheet.steps) == 2
    assert sheet.phases_ms(1)["other"] == 5
    assert sheet.closure() == pytest.approx(1)


# evaluations


def test_an_evaluation_between_epochs_has_its_own_row_and_is_in_no_epoch(loop: Loop) -> None:
    for _ in range(2):
        loop.train(2)
        loop.test(3)
    sheet = loop.recognized()
    assert [split for split, _, _ in sheet.epochs] == ["train", "test", "train", "test"]
    assert sheet.lasted_ms == [10] * 4
    for epoch in sheet.of("train"):
        assert epoch.total_s == pytest.approx(0.026)
    for number, evaluation in enumerate(sheet.of("test"), 1):
        assert evaluation.epoch == number
        assert (evaluation.loader_start_s, evaluation.loader_stop_s) == (0.002, 0.001)
        assert evaluation.total_s == pytest.approx(0.012)
        assert (evaluation.steps, evaluation.samples) == (3, 12)
        assert evaluation.data_s == pytest.approx(0.003)


def test_an_evaluation_inside_an_epoch_is_taken_out_of_both_sides(loop: Loop) -> None:
    loop.iterate(ms=5)
    for number in range(4):
        loop.fetch(1)
        loop.learn()
        if number == 1:
            loop.wait(0.5)
            loop.test(3)
            loop.wait(0.25)
    loop.exhaust(1)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [10, 10.75, 10, 10]
    assert sheet.phases_ms(1)["other"] == 0.75
    assert sheet.phases_ms(1)["data"] == 1
    [epoch], [evaluation] = sheet.of("train"), sheet.of("test")
    assert epoch.total_s == pytest.approx(0.005 + 0.04075 + 0.001)
    assert evaluation.total_s == pytest.approx(0.012)
    assert sheet.closure() == pytest.approx(1)
    assert epoch.samples == 32


def test_an_evaluation_inside_an_accumulated_step_is_taken_out_of_it(loop: Loop) -> None:
    loop.iterate(ms=5)
    for _ in range(2):
        loop.fetch(1)
        loop.call(2)
        loop.backward(4)
        loop.test(3)
        loop.fetch(1)
        loop.learn()
    loop.exhaust(1)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [17, 17]
    assert len(sheet.of("test")) == 2
    assert sheet.closure() == pytest.approx(1)


def test_an_evaluation_before_training_belongs_to_epoch_0(loop: Loop) -> None:
    loop.test(2)  # a sanity check
    loop.train(2)
    sheet = loop.recognized()
    assert [(split, timing.epoch) for split, timing, _ in sheet.epochs] == [
        ("test", 0),
        ("train", 1),
    ]
    assert sheet.began_ms[0] == 14


def test_an_evaluation_that_was_broken_off_ends_with_its_last_call(loop: Loop) -> None:
    loop.iterate(ms=5)
    for _ in range(2):
        loop.fetch(1)
        loop.learn()
        loop.iterate(TEST, ms=2)
        loop.fetch(1, TEST)
        loop.predict(2)
        loop.wait(4)  # and its iterator stays alive
    loop.exhaust(1)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [14, 14]
    assert [timing.total_s for timing in sheet.of("test")] == pytest.approx([0.005, 0.005])
    assert sheet.closure() == pytest.approx(1)


def test_an_evaluation_without_a_loader_is_taken_out_as_well(loop: Loop) -> None:
    loop.iterate(ms=5)
    for _ in range(3):
        loop.fetch(1)
        loop.learn()
        loop.wait(0.5)
        loop.predict(20)
        loop.predict(20)
        loop.wait(0.25)
    loop.exhaust(1)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [10.75] * 3
    assert len(sheet.of("test")) == 3
    assert sheet.of("test")[0].samples == 16
    assert sheet.closure() == pytest.approx(1)


def test_an_evaluation_in_a_loop_without_any_loader_is_taken_out_as_well(loop: Loop) -> None:
    for _ in range(3):
        loop.learn()
        loop.predict(20)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [9, 9, 9]
    assert len(sheet.of("test")) == 3
    assert sheet.closure() == pytest.approx(1)


def test_a_teacher_is_no_evaluation(loop: Loop) -> None:
    loop.iterate(ms=5)
    for _ in range(2):
        loop.fetch(1)
        loop.predict(6, TEACHER)
        loop.learn()
    loop.exhaust(1)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [16, 16]
    assert sheet.phases_ms(1)["forward"] == 8
    assert sheet.of("test") == []


def test_a_pass_over_data_without_a_model_is_no_evaluation(loop: Loop) -> None:
    loop.iterate(OTHER_LOADER, ms=5)  # mean and deviation of the data
    for _ in range(3):
        loop.fetch(1, OTHER_LOADER)
        loop.wait(2)
    loop.exhaust(1, OTHER_LOADER)
    loop.train(2)
    sheet = loop.recognized()
    assert [split for split, _, _ in sheet.epochs] == ["train"]
    assert sheet.lasted_ms == [10, 10]


def test_training_by_validation_batches_is_training(loop: Loop) -> None:
    loop.train(2)
    loop.iterate(TEST, ms=2)
    loop.fetch(1, TEST)
    loop.call(2, training=False)
    loop.backward(4)
    loop.update(3)
    loop.exhaust(1, TEST)
    sheet = loop.recognized()
    assert [split for split, _, _ in sheet.epochs] == ["train", "train"]
    assert [(row.epoch, row.step) for row in sheet.steps] == [(1, 1), (1, 2), (2, 1)]


def test_an_iterator_made_early_is_what_it_is_used_for(loop: Loop) -> None:
    loop.iterate(TEST, ms=2)
    loop.iterate(TRAIN, ms=5)
    for _ in range(3):
        loop.fetch(1)
        loop.learn()
        loop.wait(0.5)
        loop.fetch(1, TEST)
        loop.predict(2)
    loop.exhaust(1)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [10.5] * 3
    assert [row.samples for row in sheet.steps] == [8] * 3
    assert [timing.total_s for timing in sheet.of("test")] == pytest.approx([0.003] * 3)
    assert len(sheet.of("train")) == 1
    assert sheet.closure() == pytest.approx(1)


# epochs


def test_a_loader_that_was_looked_into_begins_anew_with_the_training(loop: Loop) -> None:
    loop.iterate(ms=5)
    loop.fetch(1)
    loop.wait(100)  # a picture of the first batch, as in many a tutorial
    for _ in range(2):
        loop.train(2)
    sheet = loop.recognized()
    assert [(row.epoch, row.step) for row in sheet.steps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert sheet.of("train")[0].start_s == pytest.approx(0.106)
    assert [row.samples for row in sheet.steps] == [8] * 4


def test_a_loader_that_was_looked_into_by_another_iterator_begins_anew_too(loop: Loop) -> None:
    loop.iterate(ms=5, of=7)
    loop.fetch(1)  # and this iterator lives on
    for key in (101, 102):
        loop.iterate(key, ms=5, of=7)
        loop.fetch(1, key)
        loop.learn()
        loop.exhaust(1, key)
    sheet = loop.recognized()
    assert [(row.epoch, row.samples) for row in sheet.steps] == [(1, 8), (2, 8)]
    assert sheet.of("train")[0].start_s == pytest.approx(0.006)


def test_a_training_that_begins_its_loader_anew_has_left_the_epoch_before(loop: Loop) -> None:
    loop.iterate(ms=5, of=7)
    for _ in range(2):  # a search for a learning rate, whose iterator lives on
        loop.fetch(1)
        loop.learn()
    loop.wait(100)
    for key in (101, 102):
        loop.iterate(key, ms=5, of=7)
        loop.fetch(1, key)
        loop.learn()
        loop.exhaust(1, key)
    sheet = loop.recognized()
    assert [row.epoch for row in sheet.steps] == [1, 1, 2, 3]
    assert sheet.lasted_ms == [10] * 4
    assert sheet.closure() == pytest.approx(1)


def test_an_evaluation_on_the_training_loader_does_not_end_the_epoch(loop: Loop) -> None:
    loop.iterate(ms=5, of=7)
    for number in range(3):
        loop.fetch(1)
        loop.learn()
        loop.iterate(100 + number, ms=2, of=7)
        loop.fetch(1, 100 + number)
        loop.predict(2)
        loop.exhaust(1, 100 + number)
    loop.exhaust(1)
    sheet = loop.recognized()
    assert [row.epoch for row in sheet.steps] == [1, 1, 1]
    assert sheet.lasted_ms == [10] * 3
    assert len(sheet.of("test")) == 3


def test_two_ways_through_one_loader_at_once_are_one_epoch(loop: Loop) -> None:
    loop.iterate(101, of=7)
    loop.iterate(102, of=7)
    for _ in range(3):
        loop.fetch(1, 101)
        loop.fetch(1, 102)
        loop.learn()
    loop.exhaust(1, 101)
    sheet = loop.recognized()
    assert [(row.epoch, row.samples) for row in sheet.steps] == [(1, 16)] * 3


def test_a_loader_that_was_let_go_of_ends_its_epoch(loop: Loop) -> None:
    for loader in (TRAIN, OTHER_LOADER):
        loop.iterate(loader, ms=5)
        for _ in range(2):
            loop.fetch(1, loader)
            loop.learn()
        loop.wait(3)
        loop.drop(loader)
        loop.wait(100)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [10, 13, 10, 13]
    assert [timing.total_s for timing in sheet.of("train")] == pytest.approx([0.028, 0.028])


def test_a_loop_that_never_asks_for_one_more_batch_ends_its_epoch_all_the_same(loop: Loop) -> None:
    for loader in (TRAIN, OTHER_LOADER):
        loop.iterate(loader, ms=5, length=2)
        for _ in range(2):
            loop.fetch(1, loader)
            loop.learn()
        loop.wait(50)
        loop.test(2)
    sheet = loop.recognized()
    assert [split for split, _, _ in sheet.epochs] == ["train", "test", "train", "test"]
    assert [row.epoch for row in sheet.steps] == [1, 1, 2, 2]
    assert sheet.lasted_ms == [10] * 4, "what comes after the last update is no step's"


def test_a_batch_trained_after_the_loaders_end_is_a_step_of_its_epoch(loop: Loop) -> None:
    loop.iterate(ms=5)
    loop.fetch(1)
    loop.fetch(1)
    loop.learn()
    loop.exhaust(1)  # the loop is one batch ahead, and finds out now
    loop.learn()
    loop.wait(30)
    loop.test(2)
    sheet = loop.recognized()
    assert [(row.epoch, row.step) for row in sheet.steps] == [(1, 1), (1, 2)]
    assert sheet.lasted_ms == [11, 10]
    assert sheet.closure() == pytest.approx(1)


def test_updates_without_a_loader_before_the_first_epoch_are_an_epoch_of_their_own(
    loop: Loop,
) -> None:
    loop.learn()
    loop.learn()
    loop.train(2)
    sheet = loop.recognized()
    assert [(row.epoch, row.step) for row in sheet.steps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert sheet.closure() == pytest.approx(1)


def test_two_loaders_side_by_side_are_one_epoch(loop: Loop) -> None:
    loop.iterate(TRAIN, ms=5)
    loop.iterate(OTHER_LOADER, ms=5)
    for _ in range(3):
        loop.fetch(1, TRAIN)
        loop.fetch(2, OTHER_LOADER)
        loop.learn()
    loop.exhaust(1, TRAIN)
    loop.drop(OTHER_LOADER)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [17, 12, 12]
    assert [row.samples for row in sheet.steps] == [16, 16, 16]
    assert len(sheet.of("train")) == 1
    assert sheet.closure() == pytest.approx(1)


def test_a_second_loader_may_begin_anew_inside_an_epoch(loop: Loop) -> None:
    loop.iterate(TRAIN, ms=5)
    loop.iterate(OTHER_LOADER, ms=5)
    for number in range(4):
        loop.fetch(1, TRAIN)
        if number == 2:
            loop.exhaust(1, OTHER_LOADER)
            loop.iterate(OTHER_LOADER + 1, ms=5)
        loop.fetch(2, OTHER_LOADER + (number >= 2))
        loop.learn()
    loop.exhaust(1, TRAIN)
    sheet = loop.recognized()
    assert [row.epoch for row in sheet.steps] == [1, 1, 1, 1]
    assert sheet.closure() == pytest.approx(1)


def test_a_script_that_ends_in_the_middle_of_an_epoch_leaves_its_steps(loop: Loop) -> None:
    loop.iterate(ms=5)
    for _ in range(2):
        loop.fetch(1)
        loop.learn()
    loop.fetch(1)
    loop.call(2)
    sheet = loop.recognized()
    assert sheet.lasted_ms == [10, 10]
    [epoch] = sheet.of("train")
    assert epoch.total_s == pytest.approx(0.025)


def test_steps_complete_are_known_before_their_rows_are_written(loop: Loop) -> None:
    loop.iterate()
    recognizer = Recognizer(Sheet(), 0)
    seen = []
    for _ in range(3):
        loop.fetch(1)
        loop.learn()
        recognizer.take(loop.events)
        loop.events.clear()
        seen.append(recognizer.steps_seen)
    assert seen == [0, 1, 2], "a step with a loader is over when the next batch is asked for"
    loop.note(e.FETCH, TRAIN, loop.other_clock)
    recognizer.take(loop.events)
    assert recognizer.steps_seen == 3


def test_a_loss_is_the_mean_over_samples_of_an_epoch(loop: Loop) -> None:
    loop.iterate()
    for samples, loss in ((8, 1.0), (8, 2.0), (4, 4.0)):
        loop.fetch(1, samples=samples)
        loop.call(2)
        loop.backward(4, loss)
        loop.update(3)
    loop.exhaust()
    [(_, _, loss)] = loop.recognized().epochs
    assert loss == pytest.approx((8 * 1 + 8 * 2 + 4 * 4) / 20)


def test_the_loaders_account_of_a_batch_comes_with_its_step(loop: Loop) -> None:
    loop.iterate(TRAIN)
    loop.iterate(OTHER_LOADER)
    loop.fetch(1, TRAIN, load=LoadTiming(1, start_ns=2 * MS, wall_ns=3 * MS, cpu_ns=2 * MS))
    loop.fetch(1, OTHER_LOADER, load=LoadTiming(0, 5 * MS, wall_ns=4 * MS, cpu_ns=1 * MS))
    loop.learn()
    loop.fetch(1)
    loop.learn()
    loop.exhaust()
    first, second = loop.recognized().steps
    assert first.load == [1, 2 * MS, 7 * MS, 3 * MS]
    assert second.load == [], "what nobody accounted for is unknown, not 0"


# detail


def test_detail_goes_with_the_steps_that_begin_under_it(loop: Loop) -> None:
    loop.iterate(ms=5)
    for number in range(6):
        if number == 2:
            loop.note(e.DETAIL, "off")
        if number == 4:
            loop.note(e.DETAIL, "full")
        loop.fetch(1)
        if number in (2, 3):
            loop.wait(6)
            loop.update(3)
        else:
            loop.learn()
        loop.wait(0.25)
    loop.exhaust(1)
    sheet = loop.recognized()
    assert [row.detail for row in sheet.steps] == ["full", "full", "off", "off", "full", "full"]
    assert sheet.lasted_ms == [10.25] * 6
    assert str(sheet.steps[2]).split(",")[4:7] == ["", "", ""]
    assert sheet.closure() == pytest.approx(1)


def test_detail_without_a_loader_turns_between_two_updates(loop: Loop) -> None:
    for number in range(6):
        loop.call(2)
        loop.backward(4)
        with loop.stepping():
            loop.wait(3)
            if number in (1, 3):
                loop.note(e.DETAIL, "layers" if number == 1 else "full")
    sheet = loop.recognized()
    assert [row.detail for row in sheet.steps] == [
        "full",
        "full",
        "layers",
        "layers",
        "full",
        "full",
    ]


# devices


def test_device_columns_partition_the_devices_time() -> None:
    device = ScriptedDevice()
    loop = Loop(device)
    loop.iterate(ms=5)
    for _ in range(3):
        loop.fetch(4)
        loop.call(2, work=10)
        loop.backward(3, work=20)
        loop.update(1)
    loop.exhaust(1)
    sheet = loop.recognized()
    first, second, third = (row.device for row in sheet.steps)
    assert first == pytest.approx((0, 0.010, 0.020, 0, 0.004)), "idle: the first wait for data"
    for later in (second, third):
        assert later == pytest.approx((0, 0.010, 0.020, 0, 0)), "its queue is never empty again"


def test_steps_are_written_when_the_device_has_reached_their_end() -> None:
    device = ScriptedDevice()
    loop = Loop(device)
    sheet = Sheet()
    recognizer = Recognizer(sheet, 0)
    loop.iterate()
    for _ in range(3):
        loop.fetch(1)
        loop.call(2, work=50)
        loop.backward(4)
        loop.update(3)
    recognizer.take(loop.events)
    assert sheet.steps == []
    assert device.now_ms == 0, "nobody made it hurry"
    device.now_ms = 60
    recognizer.take([])
    assert len(sheet.steps) == 1
    recognizer.finish()
    assert len(sheet.steps) == 3


def test_the_devices_work_for_an_evaluation_is_no_steps() -> None:
    device = ScriptedDevice()
    loop = Loop(device)
    loop.iterate(ms=5)
    for _ in range(2):
        loop.fetch(4)
        loop.call(2, work=10)
        loop.backward(3, work=20)
        loop.update(1)
        loop.iterate(TEST)
        loop.fetch(1, TEST)
        loop.call(2, grad=False, training=False, work=40)
        loop.exhaust(1, TEST)
    loop.exhaust(1)
    sheet = loop.recognized()
    for row in sheet.steps:
        assert row.device is not None
        assert sum(row.device[1:3]) == pytest.approx(0.030)
    assert len(sheet.of("test")) == 2


# any loop at all

KINDS = range(19)
SUBJECTS = {
    **dict.fromkeys((e.CALL,), st.sampled_from([MODEL, TEACHER])),
    **dict.fromkeys((e.STEP, e.STEPPED), st.sampled_from([ADAM, SGD])),
    e.CALLED: st.booleans(),
    e.DETAIL: st.sampled_from(["full", "off", "layers"]),
}
LOADERS = st.sampled_from([TRAIN, TEST, OTHER_LOADER])
SAMPLES = st.sampled_from([None, 4, 8])
DEVICES = st.sampled_from([lambda: None, lambda: ScriptedDevice()]).map(lambda make: make())
LOADS = st.sampled_from([None, LoadTiming(0, 0, MS, MS)])


@st.composite
def any_events(draw: st.DrawFn) -> Loop:
    """Events in any order whatever."""
    loop = Loop(draw(DEVICES))
    for _ in range(draw(st.integers(1, 60))):
        kind = draw(st.sampled_from(KINDS))
        loop.wait(draw(st.sampled_from([0, 1, 2, 5])))
        subject = draw(SUBJECTS.get(kind, LOADERS))
        details: dict[int, Callable[[], Any]] = {
            e.FETCHED: lambda: (draw(SAMPLES), draw(LOADS)),
            e.ITERATED: lambda: e.Iteration(
                draw(st.sampled_from([None, 0, 1, 3])), draw(st.sampled_from([None, 1, 2]))
            ),
            e.BACKWARD_DONE: lambda: draw(st.sampled_from([None, lambda: 1.0])),
            e.CALL: lambda: e.Call(
                draw(st.booleans()), draw(st.booleans()), draw(SAMPLES), loop.other_clock
            ),
        }
        loop.note(kind, subject, details.get(kind, lambda: loop.other_clock)())
    return loop


def wait(draw: st.DrawFn, loop: Loop) -> None:
    loop.wait(draw(st.sampled_from([0, 1, 2, 5])))


def work(draw: st.DrawFn, loop: Loop, depth: int = 0) -> None:
    """Something that a loop may do at any time."""
    wait(draw, loop)
    doing = draw(st.sampled_from(["learn", "backward", "call", "predict", "zero", "move", "own"]))
    if doing == "learn":
        loop.learn()
    elif doing == "backward":
        loop.call(1)
        loop.backward(1, loss=draw(st.sampled_from([None, 2.0])))
    elif doing == "call":
        module, grad = draw(st.sampled_from([MODEL, TEACHER])), draw(st.booleans())
        loop.call(2, module, grad=grad, training=draw(st.booleans()))
    elif doing == "predict":
        loop.predict(2)
    elif doing == "own":
        loop.own(1)
    else:
        getattr(loop, doing)(1)
    wait(draw, loop)


@st.composite
def whole_loops(draw: st.DrawFn) -> Loop:
    """Loaders inside loaders, read to their end or not, and anything at all done between."""
    loop = Loop(draw(DEVICES))
    keys = iter(range(100, 200))

    def iteration(depth: int) -> None:
        key = next(keys)
        batches = draw(st.integers(0, 4))
        known = draw(st.booleans())
        of = draw(st.sampled_from([None, 1, 2]))
        loop.iterate(key, ms=2, length=batches if known else None, of=of)
        for _ in range(batches):
            loop.fetch(1, key, samples=draw(SAMPLES), load=draw(LOADS))
            for _ in range(draw(st.integers(0, 2))):
                work(draw, loop)
            if depth < 2 and draw(st.integers(0, 3)) == 0:
                iteration(depth + 1)
        ending = draw(st.sampled_from(["exhaust", "drop", "nothing"]))
        if ending == "exhaust":
            loop.exhaust(1, key)
        elif ending == "drop":
            loop.drop(key)

    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            iteration(0)
        else:
            work(draw, loop)
    return loop


def hold_what_always_holds(loop: Loop) -> None:
    sheet = loop.recognized()
    end_ns = 0
    numbers: dict[int, int] = {}
    for row in sheet.steps:
        assert sum(row.spent) == row.step_ns, "phases partition a step"
        assert min(row.spent) >= 0
        assert row.start_ns >= end_ns, "steps do not overlap"
        end_ns = row.start_ns + row.step_ns
        numbers[row.epoch] = numbers.get(row.epoch, 0) + 1
        assert row.step == numbers[row.epoch], "steps count from 1 in their epoch"
        if row.device is not None:
            assert min(row.device) >= 0
            assert sum(row.device) == pytest.approx(row.step_ns / 1e9, abs=1e-9)
        str(row)
    trained = sheet.of("train")
    assert [timing.epoch for timing in trained] == list(range(1, len(trained) + 1))
    assert [timing.steps for timing in trained] == list(numbers.values())
    assert sum(timing.steps for timing in trained) == len(sheet.steps)
    for timing in trained:
        parts_s = timing.loader_start_s + timing.steps_s + timing.loader_stop_s
        assert parts_s == pytest.approx(timing.total_s, rel=1e-6, abs=1e-9)
        assert timing.data_s <= timing.steps_s + 1e-9
    for timing in sheet.of("test"):
        assert timing.total_s >= 0
        parts_s = timing.loader_start_s + timing.steps_s + timing.loader_stop_s
        assert parts_s == pytest.approx(timing.total_s, rel=1e-6, abs=1e-9)
    updates = sum(1 for kind, *_ in loop.events if kind == e.STEPPED)
    assert len(sheet.steps) <= updates


@settings(max_examples=400, deadline=None)
@given(any_events())
def test_events_in_any_order_leave_rows_that_are_consistent(loop: Loop) -> None:
    hold_what_always_holds(loop)


@settings(max_examples=400, deadline=None)
@given(whole_loops())
def test_loops_of_any_kind_leave_rows_that_are_consistent(loop: Loop) -> None:
    hold_what_always_holds(loop)
    sheet = loop.recognized()
    updates = sum(1 for kind, *_ in loop.events if kind == e.STEPPED)
    assert len(sheet.steps) == updates, "one optimiser: as many steps as updates"

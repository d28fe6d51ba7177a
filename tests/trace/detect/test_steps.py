"""What a step is and what its phases are, in loops of every kind."""

from __future__ import annotations

import pytest
from simulated_loop import ADAM, CRITIC, MODEL, OTHER_LOADER, SGD, TEACHER, TRAIN, Loop

from stepscope.trace import event_buffer as e
from stepscope.trace.detect.steps import StepDetector


def test_a_step_lasts_from_a_fetch_to_the_fetch_after_the_update(loop: Loop) -> None:
    loop.wait(100)
    # 0.5 is the loss, 7 what it prints.
    step = "fetch 1, move 1, call 2, wait 0.5, backward 4, wait 0.25, update 3, zero 1, wait 7, "
    loop.play(f"iterate ms=5, {step * 2}exhaust 2")
    assert loop.sheet.lasted_ms == [19.75, 19.75]
    assert loop.sheet.began_ms == [105, 124.75]
    assert loop.sheet.phases_ms(1) == {
        "data": 1,
        "transfer": 1,
        "forward": 2.5,
        "backward": 4,
        "optimizer": 4,
        "other": 7.25,
    }
    [epoch] = loop.sheet.of("train")
    assert (epoch.loader_start_s, epoch.loader_stop_s) == (0.005, 0.002)
    assert epoch.total_s == pytest.approx(0.005 + 2 * 0.01975 + 0.002)
    assert (epoch.steps, epoch.samples, epoch.start_s) == (2, 16, 0.1)


def test_time_between_the_loaders_start_and_the_first_fetch_is_the_first_steps(loop: Loop) -> None:
    loop.play("iterate ms=5, wait 40, step, exhaust")  # a progress bar
    assert loop.sheet.lasted_ms == [50]
    assert loop.sheet.phases_ms() == {
        "data": 1,
        "forward": 2,
        "backward": 4,
        "optimizer": 3,
        "other": 40,
    }


def test_batches_that_lead_to_one_update_are_one_step(loop: Loop) -> None:
    loop.play(
        "iterate, " + ("fetch, accumulate loss=0.25, " * 3 + "update, zero, ") * 2 + "exhaust"
    )
    assert loop.sheet.lasted_ms == [25, 25]
    assert loop.sheet.samples == [24, 24]
    assert [row.loss for row in loop.sheet.rows] == [0.75, 0.75], "parts of one loss"
    assert loop.sheet.phases_ms() == {"data": 3, "forward": 6, "backward": 12, "optimizer": 4}


def test_without_a_loader_everything_is_one_epoch(loop: Loop) -> None:
    loop.play("wait 50, " + "learn, wait 6, " * 3)
    assert loop.sheet.lasted_ms == [9, 15, 15], "what comes after the last update is no step's"
    assert loop.sheet.began_ms == [50, 59, 74]
    [epoch] = loop.sheet.of("train")
    assert epoch.total_s == pytest.approx(0.039)
    assert epoch.samples == 24, "what the model was called with"


# What a loop does, how long its steps take, and how many samples they have.
STEPS = {
    "two optimisers without a loader make one step": (
        f"learn {CRITIC} {ADAM}, learn {MODEL} {SGD}, " * 3,
        ([18, 18, 18], [8, 8, 8]),
    ),
    "updates of one optimiser without a fetch are steps from one update to the next": (
        "iterate, fetch, learn, learn, learn, wait 5, step, exhaust",
        ([10, 9, 14, 10], [8, 8, 8, 8]),
    ),
    "a loop that calls no module begins with its first backward pass": (
        "wait 10, backward, update, " * 2,
        ([7, 17], [None, None]),
    ),
    "an optimiser alone makes steps": ("update, " * 2, ([3, 3], [None, None])),
    "an optimiser that takes over begins a step of its own": (
        f"make {ADAM}, learn, learn, make {SGD}, " + f"learn optimizer={SGD}, " * 2,
        ([9] * 4, [8] * 4),
    ),
    "a model that was tried long before the training was not trained then": (
        f"make {ADAM}, call samples=1, wait 200, learn, learn",
        ([9, 9], [8, 8]),
    ),
    "two calls before the first backward pass are of one step": (
        f"make {ADAM}, " + "call, wait 3, learn, " * 2,
        ([14, 14], [8, 8]),
    ),
    "a batch that is only looked at is waited for and not trained with": (
        "iterate ms=5, step, step, fetch, drop",
        ([10, 11], [8, 8]),
    ),
    "a closure is called with the same samples again and again": (
        ("begin_update, " + "accumulate samples=300, " * 3 + "end_update, ") * 2,
        ([18, 18], [300, 300]),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_ends_where_the_next_begins(loop: Loop, name: str) -> None:
    script, expected = STEPS[name]
    loop.play(script)
    assert (loop.sheet.lasted_ms, loop.sheet.samples) == expected


# phases


@pytest.mark.parametrize(
    ("step", "phases"),
    [
        pytest.param(
            "zero 1, call 2, zero 1, wait 0.5, backward 4, update 3",
            {"forward": 2.5, "backward": 4, "optimizer": 5},
            id="zero_grad belongs to the optimiser wherever it stands",
        ),
        pytest.param(
            f"call 2, wait 3, call 2 {CRITIC}, wait 3, backward 4, wait 8, update 3",
            {"forward": 10, "backward": 4, "optimizer": 3, "other": 8},
            id="what lies between call and backward pass is the loss",
        ),
        pytest.param(
            "call 2, move 5, wait 1, backward 4, update 3",
            {"transfer": 5, "forward": 3, "backward": 4, "optimizer": 3},
            id="a move inside a forward pass is a move",
        ),
        pytest.param(
            "call 2, backward 4, " + "fetch 0, call 2, wait 1.5, backward 4, " * 2 + "update 3",
            {"forward": 9, "backward": 12, "optimizer": 3},
            id="each batch of a step has a forward pass",
        ),
        pytest.param(
            f"call 2, backward 4, call 0.5 {CRITIC}, wait 5, update 3",
            {"forward": 2.5, "backward": 4, "optimizer": 3, "other": 5},
            id="what follows a metric is no forward pass",
        ),
        pytest.param(
            f"call 2, backward 4, update 3, call 0.5 {CRITIC}, wait 5",
            {"forward": 2.5, "backward": 4, "optimizer": 3, "other": 5},
            id="nor after the update",
        ),
        pytest.param(
            f"zero 1, learn {CRITIC} {ADAM}, zero 1, learn {MODEL} {SGD}",
            {"forward": 4, "backward": 8, "optimizer": 8},
            id="two optimisers of one iteration are one step",
        ),
        pytest.param(
            f"accumulate {CRITIC}, "
            f"call 1, wait 5, learn {CRITIC} {ADAM}, call 1, wait 5, learn {CRITIC} {SGD}",
            {"forward": 18, "backward": 12, "optimizer": 6},
            id="what lies between a generator and its critic is the forward pass",
        ),
        pytest.param(
            f"predict 6 {TEACHER}, learn",
            {"forward": 8, "backward": 4, "optimizer": 3},
            id="a teacher is no evaluation",
        ),
        pytest.param(
            "begin_update, " + "wait 0.5, zero 1, accumulate, wait 5, " * 3 + "end_update",
            {"forward": 6, "backward": 12, "optimizer": 19.5},
            id="phases inside a closure are phases and the line search is the optimiser's",
        ),
        pytest.param(
            "accumulate, begin_update, wait 1, update 3, wait 1, end_update",
            {"forward": 2, "backward": 4, "optimizer": 5},
            id="a scaler around an optimiser is one update",
        ),
    ],
)
def test_a_moment_belongs_to_the_phase_that_is_open(
    loop: Loop, step: str, phases: dict[str, float]
) -> None:
    with loop.iterating():
        for _ in range(2):
            loop.fetch(1)
            loop.play(step)
    assert loop.sheet.phases_ms(0) == loop.sheet.phases_ms(1) == {"data": 1, **phases}
    assert loop.sheet.samples == [8 * (1 + step.count("fetch"))] * 2
    assert loop.sheet.splits == ["train"]


def test_a_closure_that_goes_through_all_of_the_data_is_one_update(loop: Loop) -> None:
    passes = [
        f"iterate {key} ms=5, " + f"fetch 1 {key}, accumulate, " * 3 + f"exhaust 1 {key}, "
        for key in (TRAIN, OTHER_LOADER)
    ]
    loop.play(f"begin_update, {''.join(passes)}end_update, " * 2)
    assert loop.sheet.lasted_ms == [54, 54]
    assert loop.sheet.phases_ms(1) == {"data": 18, "forward": 12, "backward": 24}
    assert loop.sheet.samples == [48, 48]


def test_updates_inside_a_backward_pass_leave_the_rest_of_it_as_it_is(loop: Loop) -> None:
    with loop.iterating():
        for _ in range(2):
            loop.fetch(1)
            loop.call(2)
            loop.record(e.BACKWARD)
            for weight in (ADAM, SGD):
                loop.wait(4)
                loop.update(3, weight)
            loop.wait(4)
            loop.record(e.BACKWARD_DONE, None, lambda: 1.0)
    assert loop.sheet.lasted_ms == [21, 21]
    assert loop.sheet.phases_ms(1) == {"data": 1, "forward": 2, "backward": 12, "optimizer": 6}


def test_our_own_work_is_other_and_never_a_wait_for_data(loop: Loop) -> None:
    loop.play("iterate, step, own 30, fetch, own 30, learn, exhaust")
    for step in (0, 1):
        assert loop.sheet.phases_ms(step)["other"] == 30
        assert loop.sheet.phases_ms(step)["data"] == 1


def test_an_update_that_raised_does_not_spoil_the_steps_after_it(loop: Loop) -> None:
    # It raised, the loop caught it and went on.
    loop.play(
        "iterate, fetch, accumulate, begin_update, wait 1, " + "step, wait 5, " * 2 + "exhaust"
    )
    assert len(loop.sheet.rows) == 2
    assert loop.sheet.phases_ms(1)["other"] == 5


def test_a_step_that_updates_inside_its_backward_pass_has_its_own_loss(loop: Loop) -> None:
    losses = [1.0, 2.0, 3.0]
    for loss in losses:
        loop.call(2, samples=4)
        loop.record(e.BACKWARD)
        loop.wait(1)
        for optimizer in (ADAM, SGD):
            loop.update(1, optimizer)
        loop.wait(1)
        loop.record(e.BACKWARD_DONE, None, loss)
    assert [row.loss for row in loop.sheet.rows] == losses
    assert loop.sheet.samples == [4, 4, 4]
    assert loop.sheet.lasted_ms == [6, 6, 6]
    assert loop.sheet.phases_ms(1) == {"forward": 2, "backward": 2, "optimizer": 2}


def test_a_model_that_was_tried_before_there_was_an_optimiser_was_not_trained_then(
    loop: Loop,
) -> None:
    loop.play(f"call samples=1, wait 50, make {ADAM}, wait 5, learn, learn, learn")
    assert loop.sheet.lasted_ms == [9, 9, 9]
    assert loop.sheet.samples == [8, 8, 8]
    assert loop.sheet.of("train")[0].start_s == pytest.approx(0.057)


def test_without_a_loader_nothing_is_kept_of_steps_that_are_over(loop: Loop) -> None:
    seen = []

    class Watched(StepDetector):
        def finish(self) -> None:
            seen.append(len(self._fast_path.events))
            super().finish()

    for _ in range(1000):
        loop.learn()
    assert len(loop.detected(Watched).rows) == 1000
    assert seen[0] < 2500

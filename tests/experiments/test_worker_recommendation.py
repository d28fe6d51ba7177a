"""Which number of workers follows from trials: simulated, so that the truth is known."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _loader_world import Loop, SimulatedBench, search
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.sweep_summary import whole_turns
from stepscope.errors import AnswerIsNo
from stepscope.experiments.script_loaders import line_with_workers
from stepscope.experiments.worker_candidates import Bounds, Candidate, Setup, candidates
from stepscope.experiments.worker_recommendation import rounds_to_confirm
from stepscope.experiments.workload import TrainingWorkload
from stepscope.records.types import StepFigures, WorkersAnswer
from stepscope.stats.decide import Ratio

LOADER_BOUND = Loop(load_s=0.03, train_s=0.015, spread=0.05)
INDIFFERENT = Loop(load_s=0.0001, train_s=0.02, spread=0.05)


def bench_of(loop: Loop, spread: float = 0.02, seed: int = 0, **options: Any) -> SimulatedBench:
    chance = random.Random(seed)
    return SimulatedBench(loop, chance, noise=lambda *_: chance.gauss(0, spread), **options)


def answer_of(bench: SimulatedBench, current: int = 0) -> WorkersAnswer:
    return search(bench, current).to_json(Path("runs"))


def test_the_smallest_number_that_keeps_up_is_used_and_proven_in_fresh_rounds() -> None:
    bench = bench_of(LOADER_BOUND)
    found = answer_of(bench)
    assert (found["recommended"], found["decided"]) in [(2, True), (4, True)]
    verified = found["verified"]
    assert verified["low"] < 3 < verified["high"]
    assert found["text"].startswith(
        f"Use --workers {found['recommended']}: {verified['ratio']:.2f}"
    )
    assert f"proven in {verified['rounds']} fresh rounds" in found["text"]
    fresh = [workers for number, workers in bench.made if number > 1000]
    assert Counter(fresh) == {0: verified["rounds"], found["recommended"]: verified["rounds"]}
    assert found["bound_by"] == "preprocessing"


def test_rounds_are_in_random_order_and_nothing_is_left_out_before_the_third() -> None:
    rounds: dict[tuple[int, int], list[int]] = {}
    for seed in range(5):
        bench = bench_of(LOADER_BOUND, seed=seed)
        random.seed(seed)
        answer_of(bench)
        for number, workers in bench.made:
            rounds.setdefault((seed, number), []).append(workers)
    first = [rounds[seed, number] for seed in range(5) for number in (1, 2, 3)]
    assert all(sorted(order) == [0, 1, 2, 4] for order in first)
    assert len({tuple(order) for order in first}) > 4


def test_what_is_set_is_kept_where_nothing_differs() -> None:
    found = answer_of(bench_of(INDIFFERENT, spread=0.05), current=2)
    assert found["recommended"] == 2
    assert found["verified_speedup"] is None
    assert "--workers 2" in found["text"]


def test_a_number_that_waits_for_nothing_is_kept_without_a_doubt() -> None:
    found = answer_of(bench_of(Loop(load_s=0.0001, train_s=0.02), spread=0.004))
    assert (found["recommended"], found["decided"]) == (0, True)
    assert found["bound_by"] == "compute"


def test_waiting_for_nothing_does_not_excuse_workers_that_slow_the_network_down() -> None:
    loop = Loop(load_s=0.0001, train_s=0.02, slowed_by_a_worker=0.05)
    found = answer_of(bench_of(loop, spread=0.01), current=4)
    assert found["recommended"] == 0
    assert found["verified_speedup"] == pytest.approx(1.2, rel=0.05)


def test_noise_that_hides_the_difference_keeps_what_is_set_and_says_what_would_tell() -> None:
    loop = Loop(load_s=0.001, train_s=0.02)
    found = answer_of(bench_of(loop, spread=0.1))
    assert (found["recommended"], found["decided"]) == (0, False)
    assert found["text"].startswith("Undecided: ")
    assert "Keep --workers 0" in found["text"]


def test_a_pick_that_is_slower_in_fresh_rounds_is_not_recommended() -> None:
    bench = bench_of(LOADER_BOUND)
    confirming = Loop(load_s=0.0001, train_s=0.02, slowed_by_a_worker=0.5)
    original = bench.have

    def have(settings: Any, repeat: int, *shown: object) -> Any:
        bench.loop = confirming if repeat > 1000 else LOADER_BOUND
        return original(settings, repeat, *shown)

    bench.have = have  # type: ignore[method-assign]
    found = answer_of(bench)
    assert (found["recommended"], found["verified"]["verdict"]) == (0, "slower")
    assert "looked faster" in found["text"]


def test_rounds_that_other_programs_disturbed_are_repeated() -> None:
    found = answer_of(bench_of(LOADER_BOUND, disturbed=lambda number: number in (1, 3)))
    assert found["disturbed_rounds"] == 2
    assert found["recommended"] >= 2


def test_nothing_is_recommended_on_a_busy_machine() -> None:
    bench = bench_of(LOADER_BOUND, disturbed=lambda number: True)
    found = answer_of(bench)
    assert (found["recommended"], found["decided"]) == (0, False)
    assert found["text"].startswith("Undecided: other programs used 70 % of the CPU")
    assert max(number for number, _ in bench.made) == 3


def test_rounds_that_prove_nothing_for_lack_of_quiet_keep_what_is_set() -> None:
    found = answer_of(bench_of(LOADER_BOUND, disturbed=lambda number: number > 1000))
    assert (found["recommended"], found["decided"]) == (0, False)


def test_a_number_that_dies_is_no_answer() -> None:
    found = answer_of(bench_of(LOADER_BOUND, died={4: "out of memory"}))
    assert found["recommended"] == 2
    dead = next(row for row in found["candidates"] if row["workers"] == 4)
    assert (dead["reason"], dead["rounds"]) == ("out of memory", 0)


def test_the_fastest_is_used_where_the_current_number_dies() -> None:
    found = answer_of(bench_of(LOADER_BOUND, died={0: "out of memory"}))
    assert found["recommended"] in (2, 4)
    assert "out of memory" in found["text"]
    assert found["verified"]["ratio"] is None


def test_no_answer_where_every_number_dies() -> None:
    with pytest.raises(AnswerIsNo, match="4 workers: broken"):
        answer_of(bench_of(LOADER_BOUND, died=dict.fromkeys((0, 1, 2, 4), "broken")))


def test_large_differences_need_three_fresh_rounds_and_small_ones_more() -> None:
    assert rounds_to_confirm(Ratio(3.75, 3.0, 4.5, 3, 0.05)) == 3
    assert rounds_to_confirm(Ratio(1.05, 0.9, 1.2, 3, 0.05)) == 6
    assert rounds_to_confirm(None) == 6


# --- candidates and the length of trials


def test_candidates_go_up_to_the_cpus_and_include_what_is_set_now() -> None:
    numbers = (0, 1, 2, 3, 4, 8)
    assert candidates(Bounds(cpus=8), current=3) == [Candidate(number) for number in numbers]
    assert candidates(Bounds(cpus=1), current=0) == [Candidate(each) for each in (0, 1, 2, 4)]


def test_memory_and_shared_memory_bound_the_candidates() -> None:
    by_memory = Bounds(cpus=16, limit_bytes=1400, alone_bytes=400, worker_bytes=300)
    by_shm = Bounds(cpus=16, shm_free_bytes=1000, batch_bytes=100, prefetch=2)
    assert (by_memory.most, by_memory.what_limits) == (3, "memory")
    assert (by_shm.most, "/dev/shm" in (by_shm.what_limits or "")) == (4, True)
    assert Bounds(cpus=16).what_limits is None


def seen_with(load_s: float, load_cpu_s: float) -> Any:
    steady = {"step_s": 0.05, "data_s": 0.03, "load_s": load_s, "load_cpu_s": load_cpu_s}
    return {"steady": {**dict.fromkeys(StepFigures.__annotations__), **steady}}


def test_more_workers_than_cpus_are_tried_where_they_mostly_wait() -> None:
    bounds = Bounds(cpus=2)
    assert bounds.with_seen(1, seen_with(0.15, 0.01)).most == 16  # 9 keep up
    assert bounds.with_seen(1, seen_with(9.0, 0.01)).most == 16  # 8 a CPU at most
    assert bounds.with_seen(1, seen_with(0.15, 0.14)).most == 4


def setup_of(steps: int | None, max_steps: int | None = None, current: int = 0) -> Setup:
    bounds = Bounds(cpus=2, prefetch=2)
    workload = TrainingWorkload({})
    setup = Setup(workload, Candidate(current), steps, 1, bounds, max_steps=max_steps)
    return setup.bounded_by_steps()


@pytest.mark.parametrize("steps", [20, 60, 200, 1000, None])
def test_four_workers_are_tried_however_short_an_epoch_is(steps: int | None) -> None:
    setup = setup_of(steps)
    assert setup.bounds.most == 4
    for candidate in candidates(setup.bounds, 0):
        values = setup.values(candidate)
        if setup.takes_epochs:
            assert values["max_steps"] == 60 == 20 * int(str(values["epochs"]))
        else:
            assert int(str(values["max_steps"])) <= min(steps or 1000, 60)


def test_the_steps_of_a_trial_may_bound_the_candidates_which_is_said() -> None:
    bounds = setup_of(1000, max_steps=12).bounds
    assert (bounds.most, bounds.what_limits) == (2, "the steps of a trial")


@given(st.integers(1, 100), st.integers(0, 64))
def test_a_window_holds_whole_turns_of_the_workers(steps: int, workers: int) -> None:
    window = whole_turns(steps, workers)
    assert window <= max(steps, 2 * workers)
    assert workers == 0 or window % workers == 0


# --- the line to change


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "a = 1\nload = DataLoader(data, batch_size=8, num_workers=args.n)",
            "Change train.py:2:  DataLoader(data, batch_size=8, num_workers=3)",
        ),
        (
            "t = data.DataLoader(x)\nl = data.DataLoader(y, shuffle=True)",
            "Change train.py:2:  data.DataLoader(y, shuffle=True, num_workers=3)",
        ),
        ("a = DataLoader(x)\nb = DataLoader(y)", None),
        ("import loaders", None),
    ],
)
def test_the_line_to_change_is_named_where_it_is_clear(
    tmp_path: Path, text: str, line: str | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert line_with_workers(str(script), 3) == line
    assert line_with_workers(None, 3) is None

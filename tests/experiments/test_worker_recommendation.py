"""Which number of workers follows from what was seen: pure figures, no trial is made."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.sweep_summary import whole_turns
from stepscope.experiments.worker_candidates import (
    Bounds,
    Candidate,
    first_candidates,
    next_larger,
)
from stepscope.experiments.worker_recommendation import Board


def figures(rate: float, wait_share: float = 0.5) -> dict[str, Any]:
    steady = {"step_s": 0.1, "data_s": 0.1 * wait_share, "load_s": 0.1, "load_cpu_s": 0.1}
    return {"steady_samples_per_s": rate, "steady": steady}


def board_of(rates: dict[int, list[float]], wait_share: dict[int, float] | None = None) -> Board:
    board = Board()
    for workers, seen in rates.items():
        for number, rate in enumerate(seen, 1):
            share = (wait_share or {}).get(workers, 0.5)
            board.note(Candidate(workers), number, figures(rate, share))
    return board


@pytest.mark.parametrize(
    ("rates", "wait_share", "picked", "decided"),
    [
        pytest.param(
            {0: [50, 51, 50], 2: [100, 100.2, 100], 4: [100.2, 100, 100.1]}, {}, 2, True,
            id="the smallest that is tied with the best",
        ),
        pytest.param(
            {0: [50, 52, 51], 1: [70, 71, 69], 4: [200, 201, 199]}, {}, 4, True,
            id="a clear winner, although it is the largest",
        ),
        pytest.param(
            {0: [100, 80, 110], 2: [90, 115, 100]}, {0: 0.01, 2: 0.0}, 0, True,
            id="one that hardly waits, whatever the noise",
        ),
        pytest.param(
            {1: [50, 51, 50], 2: [100, 101, 100]}, {1: 0.0, 2: 0.0}, 2, True,
            id="not one that hardly waits and is slower all the same",
        ),
        pytest.param(
            {0: [100, 70, 130], 2: [101, 130, 71]}, {}, 0, False,
            id="undecided where the noise hides the difference",
        ),
    ],
)  # fmt: skip
def test_the_smallest_number_that_loses_nothing_is_picked(
    rates: dict[int, list[float]], wait_share: dict[int, float], picked: int, decided: bool
) -> None:
    pick = board_of(rates, wait_share).pick()
    assert (pick.candidate, pick.decided) == (Candidate(picked), decided)
    assert ("cannot help" in pick.why) == (wait_share.get(picked) == 0.01)


def test_one_that_died_is_no_answer() -> None:
    board = board_of({0: [50, 50], 2: [60, 60], 4: [900, 900]})
    board.died[Candidate(4)] = "out of memory"
    assert board.pick().candidate == Candidate(2)
    assert Candidate(4) not in board.playing


def test_candidates_proven_worse_get_no_further_round_and_do_not_come_back() -> None:
    board = board_of({0: [50, 51, 50], 1: [70, 71, 70], 2: [100, 102, 99], 4: [99, 103, 100]})
    board.drop_losers()
    assert board.playing == [Candidate(2), Candidate(4)]
    board = board_of({1: [100], 2: [101], 4: [99], 8: [98]})
    board.drop_losers()
    for workers in (1, 2):
        board.note(Candidate(workers), 2, figures(80))  # the machine got slower
    assert board.playing == [Candidate(1), Candidate(2)]
    assert board.best in (Candidate(1), Candidate(2))


@given(
    st.dictionaries(
        st.sampled_from([0, 1, 2, 4, 8, 16]),
        st.lists(st.floats(10, 1000), min_size=3, max_size=3),
        min_size=1,
    )
)
def test_the_pick_is_never_shown_to_be_worse_than_the_best(rates: dict[int, list[float]]) -> None:
    board = board_of(rates)
    pick = board.pick()
    board.drop_losers()
    assert pick.candidate in board.playing
    assert pick.best in board.playing


@pytest.mark.parametrize("seed", range(5))
def test_at_this_noise_the_pick_is_within_a_tenth_of_the_truth(seed: int) -> None:
    chance, truth = random.Random(seed), {0: 50.0, 1: 60.0, 2: 100.0, 4: 101.0}
    rates = {
        workers: [rate * chance.lognormvariate(0, 0.03) for _ in range(5)]
        for workers, rate in truth.items()
    }
    assert truth[board_of(rates).pick().candidate.workers] > 90


def test_candidates_go_up_to_the_cpus_and_include_what_is_set_now() -> None:
    assert first_candidates(Bounds(cpus=8), current=3) == [
        Candidate(number) for number in (0, 1, 2, 3, 4, 8)
    ]
    assert first_candidates(Bounds(cpus=1), current=0) == [Candidate(0), Candidate(1)]


def test_memory_and_shared_memory_bound_the_candidates() -> None:
    by_memory = Bounds(cpus=16, limit_bytes=1400, alone_bytes=400, worker_bytes=300)
    by_shm = Bounds(cpus=16, shm_free_bytes=1000, batch_bytes=100, prefetch=2)
    assert by_memory.most() == 3
    assert by_shm.most() == 4


def test_more_workers_than_cpus_are_tried_only_where_they_mostly_wait() -> None:
    bounds = Bounds(cpus=2)
    assert next_larger(2, bounds, load_s=0.1, load_cpu_s=0.01) == Candidate(4)
    assert next_larger(2, bounds, load_s=0.1, load_cpu_s=0.09) is None
    assert next_larger(16, bounds, load_s=0.1, load_cpu_s=0.01) is None


@given(st.integers(1, 100), st.integers(0, 64))
def test_a_window_holds_whole_turns_of_the_workers(steps: int, workers: int) -> None:
    window = whole_turns(steps, workers)
    assert window <= max(steps, 2 * workers)
    assert workers == 0 or window % workers == 0

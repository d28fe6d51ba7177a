"""The search for the largest batch, against scripted memory: nothing is run."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.experiments.batch_bisection import (
    EDGE,
    MOST_TRIALS,
    BatchTrial,
    Line,
    Question,
    largest,
    next_batch,
    round_batch,
    search,
)

MIB = 2**20
LIMIT = 1000 * MIB


@dataclass
class Machine:
    """A run that takes `base` and so much a sample, and is ended near the limit."""

    base_bytes: float
    sample_bytes: float
    knows_peaks: bool = True
    tried: list[int] = field(default_factory=list)

    def peak(self, batch: int) -> int:
        return int(self.base_bytes + self.sample_bytes * batch)

    def fits(self, batch: int) -> bool:
        return self.peak(batch) <= EDGE * LIMIT

    def __call__(self, batch: int) -> BatchTrial:
        self.tried.append(batch)
        peak = min(self.peak(batch), LIMIT + MIB) if self.knows_peaks else None
        status = "completed" if self.fits(batch) else "out_of_memory"
        return BatchTrial(batch, self.fits(batch), peak, status=status)


def guided(machine: Machine, most: int, off: float = 1.0) -> Question:
    """Ask with a forecast that is off by a factor, as `fit` would."""
    line = Line(machine.base_bytes, machine.sample_bytes * off)
    first = min(most, line.batch_at(0.9 * LIMIT))
    return Question(LIMIT, most, first if first == most else round_batch(first), line)


# --- what it finds --------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 3.0])
@pytest.mark.parametrize("sample_mib", [0.02, 0.5, 3.0])
def test_it_comes_near_the_limit_in_a_few_trials_although_the_forecast_is_off(off, sample_mib):
    machine = Machine(300 * MIB, sample_mib * MIB)
    best = largest(search(guided(machine, 10**6, off), machine))
    assert 0.85 * LIMIT < machine.peak(best.batch_size) <= EDGE * LIMIT
    assert len(machine.tried) <= 5
    assert all(batch % 8 == 0 for batch in machine.tried if batch > 16)


def test_a_good_forecast_takes_two_trials_at_most_and_one_for_all_the_data():
    machine = Machine(300 * MIB, 2 * MIB)
    search(guided(machine, 10**6), machine)
    assert len(machine.tried) <= 2
    machine = Machine(300 * MIB, 0.01 * MIB)
    best = largest(search(guided(machine, 1001), machine))
    assert (best.batch_size, machine.tried) == (1001, [1001])


@pytest.mark.parametrize(
    ("asked", "first"), [(7, [7]), (100, [100]), (999, [999]), (5000, [5000, 296])]
)
def test_the_requested_batch_comes_first_then_what_the_forecast_says(asked, first):
    machine = Machine(300 * MIB, 2 * MIB)
    best = largest(search(Question(LIMIT, 10**6, asked, Line(300 * MIB, 2 * MIB)), machine))
    assert machine.tried[: len(first)] == first
    assert 0.85 * LIMIT < machine.peak(best.batch_size) <= EDGE * LIMIT


@pytest.mark.parametrize("knows_peaks", [True, False])
def test_without_a_forecast_it_doubles_and_halves(knows_peaks):
    machine = Machine(300 * MIB, 2 * MIB, knows_peaks)
    best = largest(search(Question(LIMIT, 10**6, 64), machine))
    assert machine.tried[:2] == [64, 128]
    assert machine.peak(best.batch_size) > 0.75 * LIMIT


def test_where_not_even_one_sample_fits_there_is_no_answer_and_one_sample_was_tried():
    machine = Machine(1.5 * LIMIT, MIB)
    assert largest(search(Question(LIMIT, 1000, 640), machine)) is None
    assert machine.tried[-1] == 1
    machine.tried = []
    assert largest(search(guided(machine, 1000), machine)) is None
    assert machine.tried == [1]


def test_what_fails_for_another_reason_ends_the_search():
    failed = BatchTrial(64, False, status="failed", exit_code=2)
    assert search(Question(LIMIT, 1000, 64), lambda batch: failed) == [failed]


def test_a_peak_near_the_limit_is_not_tried_to_be_bettered():
    at_the_edge = BatchTrial(64, True, int(0.9 * LIMIT))
    line = Line(300 * MIB, 10 * MIB)
    assert next_batch(Question(LIMIT, 1000, 64, line), [at_the_edge]) is None


# --- what always holds ----------------------------------------------------------------------------


@st.composite
def questions(draw):
    machine = Machine(
        draw(st.floats(0, 1.2)) * LIMIT,
        draw(st.floats(1e-5, 2)) * LIMIT,
        draw(st.booleans()),
    )
    most = draw(st.integers(1, 200_000))
    line = Line(
        machine.base_bytes * draw(st.floats(0.5, 2)),
        machine.sample_bytes * draw(st.floats(0.1, 10)),
    )
    first = draw(st.integers(1, most))
    return machine, Question(LIMIT, most, first, draw(st.sampled_from([None, line])))


@given(questions())
def test_it_ends_tries_nothing_twice_and_gives_the_largest_that_fits(asked):
    machine, question = asked
    best = largest(search(question, machine))
    assert 1 <= len(machine.tried) <= MOST_TRIALS
    assert len(set(machine.tried)) == len(machine.tried)
    assert all(1 <= batch <= question.most for batch in machine.tried)
    if best is None:
        assert 1 in machine.tried
        assert not any(map(machine.fits, machine.tried))
    else:
        assert best.batch_size in machine.tried
        assert machine.fits(best.batch_size)
        assert all(not machine.fits(b) for b in machine.tried if b > best.batch_size)


@given(questions(), st.randoms())
def test_memory_that_varies_by_chance_leads_to_no_false_answer_either(asked, random):
    _, question = asked
    trials = search(
        question,
        lambda batch: BatchTrial(batch, random.random() < 0.5, int(random.uniform(0.1, 1) * LIMIT)),
    )
    best = largest(trials)
    assert len(trials) <= MOST_TRIALS
    assert best is None or (best in trials and best.fits)

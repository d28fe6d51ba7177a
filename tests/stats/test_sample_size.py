"""How many rounds a slowdown needs: held against the experiment itself, played with other dice."""

from __future__ import annotations

import math
from random import Random

import pytest

from stepscope.stats import ratio_of_rounds, rounds_needed, verdict


def share_found(noise: float, slowdown: float, rounds: int, played: int = 1500) -> float:
    random = Random(99)
    found = 0
    for _ in range(played):
        other = [(1 - slowdown) * math.exp(random.gauss(0, noise)) for _ in range(rounds)]
        found += verdict(ratio_of_rounds([1.0] * rounds, other)) == "slower"
    return found / played


@pytest.mark.parametrize(("noise", "slowdown"), [(0.03, 0.05), (0.06, 0.05), (0.12, 0.2)])
def test_with_that_many_rounds_it_is_found_four_times_in_five(noise, slowdown):
    rounds = rounds_needed(noise, slowdown)
    assert share_found(noise, slowdown, rounds) >= 0.8 - 0.04
    assert share_found(noise, slowdown, rounds - 1) < 0.8 + 0.04


def test_more_noise_smaller_slowdowns_more_power_and_more_confidence_need_more_rounds():
    usual = rounds_needed(0.06)
    more = [
        rounds_needed(0.12),
        rounds_needed(0.06, slowdown=0.03),
        rounds_needed(0.06, power=0.95),
        rounds_needed(0.06, confidence=0.99),
    ]
    assert all(rounds is not None and rounds > usual for rounds in more)


def test_the_same_question_has_the_same_answer():
    assert rounds_needed(0.08) == rounds_needed(0.08)


def test_without_noise_two_rounds_tell():
    assert rounds_needed(0) == 2


def test_where_the_noise_hides_it_the_answer_is_none_and_not_a_guess():
    assert rounds_needed(3.0, most=50) is None


@pytest.mark.parametrize(
    "wrong", [{"noise": -1}, {"noise": math.nan}, {"slowdown": 0}, {"power": 1}]
)
def test_a_question_without_an_answer_is_refused(wrong):
    with pytest.raises(ValueError, match="wanted a noise"):
        rounds_needed(**{"noise": 0.1, **wrong})

"""Points by band, hard limits, and rules that a record shows to be broken."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.accelerator.rubric import RuleCheck, check_rules, score

WITHIN_RULES: dict[str, Any] = {
    "augment": "none",
    "optimizer": "sgd",
    "epochs": 29,
    "weights": None,
    "seed": 1,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "batch_size": 64,
}
DESIGN = "simple_weight_stationary"


def test_the_published_solution_has_90_points():
    found = score(0.7966, 0.32204, 46_344, 98_304)
    assert found.points == 90
    assert found.by_part == {"accuracy": 50, "energy": 20, "latency": 20}


@pytest.mark.parametrize(
    ("part", "values", "points"),
    [
        ("accuracy", (0.81, 0.8, 0.7, 0.605, 0.6, 0.5001, 0.5), [60, 50, 40, 40, 30, 30, 0]),
        ("energy", (0.499, 0.5, 1.0, 1.5, 2.0), [20, 15, 10, 5, 0]),
        ("latency", (99_999, 1e5, 2.5e5, 5e5, 1e6), [20, 15, 10, 5, 0]),
    ],
)
def test_bands_are_half_open(part, values, points):
    figures = {"accuracy": 0.9, "energy": 3.0, "latency": 2e6}
    found = [score(*{**figures, part: value}.values(), 1).by_part[part] for value in values]
    assert found == points


def test_a_hard_limit_leaves_no_points():
    assert score(0.9, 0.1, 1000, 10**6 - 1).points == 100
    for exceeded in (score(0.9, 0.1, 1000, 10**6), score(0.5, 0.1, 1000, 1)):
        assert exceeded.points == 0
        assert len(exceeded.limits_exceeded) == 1


def test_a_run_within_the_rules_breaks_none_and_says_what_is_not_known():
    found = check_rules(WITHIN_RULES, None, DESIGN)
    assert found.broken == []
    assert len(found.unknown) == 1
    assert check_rules(WITHIN_RULES, "validation", DESIGN) == RuleCheck([], [])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"augment": "crop-flip"}, "no augmentation"),
        ({"optimizer": "adam"}, "SGD only"),
        ({"epochs": 30}, "fewer than 30 epochs"),
        ({"weights": "somewhere"}, "no pre-trained weights"),
        ({"seed": None}, "seed is missing"),
    ],
)
def test_a_broken_rule_is_named(changed, said):
    [broken] = check_rules(WITHIN_RULES | changed, None, DESIGN).broken
    assert said in broken


def test_another_design_and_a_choice_by_the_test_set_are_broken_rules():
    found = check_rules(WITHIN_RULES, "test", "mine")
    assert len(found.broken) == 2
    assert found.unknown == []

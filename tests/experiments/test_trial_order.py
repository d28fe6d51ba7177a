"""Axes, grids and the order of trials."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.experiments.trial_order import grid, plan_trials, read_axes


@pytest.mark.parametrize(
    ("over", "of_script", "axis"),
    [
        ("workers=0,1,2", False, {"workers": [0, 1, 2]}),
        ("lr=0.1,1e-3", False, {"lr": [0.1, 0.001]}),
        ("optimizer=sgd,nesterov", False, {"optimizer": ["sgd", "nesterov"]}),
        ("nesterov=true", False, {"nesterov": [True]}),
        ("batch-size=16,64", False, {"batch_size": [16, 64]}),
        ("num_workers=0,2", False, {"workers": [0, 2]}),
        ("num_workers=0,2", True, {"workers": [0, 2]}),
        ("arg:--lr=0.10,1e-2", True, {"arg:--lr": ["0.10", "1e-2"]}),  # spelled as given
    ],
)
def test_an_axis_is_read_with_its_values(over: str, of_script: bool, axis: dict[str, Any]) -> None:
    assert read_axes([over], of_script=of_script) == axis


@pytest.mark.parametrize(
    ("over", "of_script", "complaint"),
    [
        ([], False, "at least one axis"),
        (["worker=0,1"], False, "Did you mean 'workers'?"),
        (["workers"], False, "KEY=V1,V2"),
        (["workers="], False, "a value between all commas"),
        (["workers=0,,1"], False, "a value between all commas"),
        (["workers=0,1", "workers=2"], False, "given twice"),
        (["workers=0,1,0"], False, "has 0 twice"),
        (["out=a,b"], False, "no axis 'out'"),
        (["arg:--lr=1,2"], False, "Give the script after --"),
        (["arg:=1,2"], True, "wanted a flag"),
        (["model=lenet,resnet18"], True, "no axis 'model'"),
    ],
)
def test_an_axis_that_makes_no_sense_is_refused(
    over: list[str], of_script: bool, complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint.replace("?", r"\?")):
        read_axes(over, of_script=of_script)


def test_a_grid_has_every_combination_once() -> None:
    assert grid({"workers": [0, 1], "batch_size": [16, 64]}) == [
        {"workers": 0, "batch_size": 16},
        {"workers": 0, "batch_size": 64},
        {"workers": 1, "batch_size": 16},
        {"workers": 1, "batch_size": 64},
    ]


_SETTINGS = st.lists(
    st.fixed_dictionaries({"workers": st.integers(0, 64)}), min_size=1, max_size=6, unique_by=str
)


@given(_SETTINGS, st.integers(1, 8), st.integers(0, 2**32))
def test_every_setting_is_tried_once_a_round_and_rounds_follow_each_other(
    settings: list[dict[str, Any]], repeats: int, seed: int
) -> None:
    trials = plan_trials(settings, repeats, seed)
    assert [trial.index for trial in trials] == list(range(len(settings) * repeats))
    for number in range(repeats):
        of_round = trials[number * len(settings) : (number + 1) * len(settings)]
        assert {trial.repeat for trial in of_round} == {number + 1}
        assert sorted(map(str, (t.values for t in of_round))) == sorted(map(str, settings))
    assert trials == plan_trials(settings, repeats, seed)


def test_the_order_differs_between_rounds() -> None:
    trials = plan_trials([{"workers": number} for number in range(6)], 4, seed=1)
    orders = [
        [t.values["workers"] for t in trials if t.repeat == round_] for round_ in (1, 2, 3, 4)
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_over_as_many_rounds_as_settings_each_is_once_at_each_place() -> None:
    trials = plan_trials([{"workers": number} for number in range(6)], 6, seed=1)
    places = {(trial.index % 6, trial.values["workers"]) for trial in trials}
    assert len(places) == 36


@pytest.mark.parametrize("repeats", [0, -1, 10**9])
def test_a_plan_without_trials_or_without_end_is_refused(repeats: int) -> None:
    with pytest.raises(RequestError):
        plan_trials([{"workers": 0}], repeats, 0)

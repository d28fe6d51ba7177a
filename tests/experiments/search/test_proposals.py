"""What a search draws from: a budget, a space of designs, and proposals that keep to both."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_estimate import ALL_NAMED, cost

from stepscope.errors import AnswerIsNo, RequestError
from stepscope.experiments.search import proposals
from stepscope.experiments.search.proposals import Asked, SearchBudget, propose, read_budget
from stepscope.experiments.search.search_space import Space, check_space
from stepscope.models.efficient_design import read_design

# --- budget ---------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from(["energy_mj", "cycles", "peak_activation_bytes"]),
        st.floats(1e-6, 1e12),
        min_size=1,
    )
)
def test_a_budget_is_read_as_it_is_written(limits):
    written = ",".join(f"{name}={limit!r}" for name, limit in limits.items())
    assert read_budget(written).limits == limits


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "wanted NAME=NUMBER"),
        ("cycles", "wanted NAME=NUMBER"),
        ("energy=1", "Did you mean 'energy_mj'"),
        ("cycles=1,cycles=2", "given twice"),
        ("cycles=many", "a number above 0 for cycles, found 'many'"),
        ("cycles=0", "a number above 0 for cycles, found '0'"),
        ("cycles=-1", "a number above 0"),
        ("cycles=nan", "a number above 0"),
        ("cycles=inf", "a number above 0"),
        ("cycles=1,", "wanted NAME=NUMBER"),
    ],
)
def test_a_budget_that_is_none_is_refused(written, said):
    with pytest.raises(RequestError, match=said):
        read_budget(written)


def test_a_figure_at_its_limit_is_within_the_budget():
    budget = SearchBudget({"cycles": 100.0})
    assert budget.holds({"cycles": 100.0, "energy_mj": 9e9})
    assert not budget.holds({"cycles": 100.1})


# --- space ----------------------------------------------------------------------------------------

CIFAR = (3, 32, 32)


@given(st.integers(1, 10**5), st.integers(1, 100), st.integers(1, 300))
def test_every_batch_size_leaves_an_epoch_its_steps(samples, accumulate, processes):
    fixed = {"accumulate": accumulate, "processes": processes}
    sizes = Space(fixed, samples, CIFAR).batch_sizes
    assert all(size * accumulate * 4 <= samples and size >= processes for size in sizes)
    assert 32 in sizes or 32 * accumulate * 4 > samples or processes > 32


@pytest.mark.parametrize(
    ("fixed", "samples", "shape", "designs", "said"),
    [
        ({}, 127, CIFAR, 4, "4 steps of 32 samples or more in an epoch, found 127 samples"),
        ({"accumulate": 8}, 800, CIFAR, 4, "4 steps of 32 x accumulate 8 samples"),
        ({}, 1000, (3, 4, 40), 4, "large enough for 2 stages of a network, found 4x40 pixels"),
        (ALL_NAMED, 1000, CIFAR, 1, "nothing is left to search"),
        ({**ALL_NAMED, "epochs": 2}, 1000, CIFAR, 1, "nothing is left to search"),
    ],
)
def test_a_space_with_nothing_to_draw_is_refused(fixed, samples, shape, designs, said):
    with pytest.raises(RequestError, match=said):
        check_space(Space(fixed, samples, shape), designs)


def test_no_more_ways_are_tried_than_there_are():
    open_to = ("momentum", "schedule")
    fixed = {name: value for name, value in ALL_NAMED.items() if name not in open_to}
    check_space(Space(fixed, 1000, CIFAR), 6)
    with pytest.raises(RequestError, match=r"wanted at most 6, .* found 7"):
        check_space(Space(fixed, 1000, CIFAR), 7)


@pytest.mark.parametrize("shape", [(3, 5, 5), (3, 15, 64), CIFAR, (3, 45, 45), (3, 8, 8)])
def test_every_design_trains_on_a_batch_of_one_image(shape):
    import torch

    from stepscope.models.efficient_net import Efficient

    for proposal in take(12, limit=1e9, shape=shape):
        design = read_design(proposal["values"]["model"])
        assert Efficient(design)(torch.zeros(1, *shape)).shape == (1, 10)


# --- proposals ------------------------------------------------------------------------------------


def take(count, recorded=(), *, limit=300.0, fixed=None, seed=3, shape=CIFAR):
    """Take so many fitting proposals; say what they came to; return all that were recorded."""
    found = list(recorded)
    asked = Asked(SearchBudget({"cycles": limit}), Space(fixed or {}, 1000, shape), seed)
    given = propose(asked, list(recorded), found.append, cost)
    for proposal, tell in islice(given, count):
        tell(1 / proposal["figures"]["cycles"])
    return found


def test_proposals_above_the_budget_are_recorded_and_not_given():
    found = take(6)
    assert sum(each["fits"] for each in found) == 6
    assert all(each["fits"] == (each["figures"]["cycles"] <= 300) for each in found)
    assert not all(each["fits"] for each in found)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 14))
def test_a_search_that_goes_on_proposes_what_it_would_have_proposed(stopped_after):
    whole = take(8)
    assert take(8, whole[:stopped_after]) == whole


def test_another_seed_proposes_nothing_that_this_one_does():
    values = [each["values"] for each in take(8)]
    assert not any(each["values"] in values for each in take(8, seed=4))


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 17))
def test_where_little_is_left_open_nothing_is_proposed_twice(stopped_after):
    fixed = {"model": "efficient:w64", "lr": 0.1, "weight_decay": 0.0}
    whole = take(18, fixed=fixed)  # 3 batch sizes, 3 momenta, 2 schedules: all there is
    assert len({tuple(each["values"].items()) for each in whole}) == len(whole) == 18
    assert take(18, whole[:stopped_after], fixed=fixed) == whole


def test_when_everything_was_proposed_the_answer_is_no(monkeypatch):
    monkeypatch.setattr(proposals, "_MOST_DRAWS", 20)
    fixed = {name: value for name, value in ALL_NAMED.items() if name != "schedule"}
    with pytest.raises(AnswerIsNo, match="no new design is left after 2 proposals"):
        take(3, fixed=fixed)


def test_what_somebody_has_fixed_is_not_searched():
    found = take(3, fixed={"lr": 0.1, "batch_size": 64})
    assert all(not {"lr", "batch_size"} & each["values"].keys() for each in found)
    assert all(
        {"model", "momentum", "weight_decay", "schedule"} <= each["values"].keys() for each in found
    )


def test_a_design_without_a_result_does_not_end_the_search():
    given = propose(
        Asked(SearchBudget({"cycles": 1e9}), Space({}, 1000, CIFAR), 0), [], lambda _: None, cost
    )
    for _, tell in islice(given, 12):
        tell(None)


def test_a_budget_that_nothing_meets_ends_the_search_with_the_nearest(monkeypatch):
    monkeypatch.setattr(proposals, "MOST_IN_A_ROW", 12)
    with pytest.raises(
        AnswerIsNo, match=r"within cycles=1: 12 in a row .* nearest is efficient:\S+ with cycles="
    ):
        take(1, limit=1.0)


def test_a_given_network_above_the_budget_is_refused_at_once():
    with pytest.raises(AnswerIsNo, match=r"w64 is above cycles=1: it takes cycles=64"):
        take(1, limit=1.0, fixed={"model": "efficient:w64"})

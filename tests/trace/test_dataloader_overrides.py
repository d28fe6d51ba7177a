"""Settings put into the loaders that a script makes: what torch takes, and what is said of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from stepscope.trace.dataloader_overrides import LoaderOverrides, decide, shuffles

# torch says so of two workers on a machine with one CPU.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SAMPLES = 24
DATA = TensorDataset(torch.arange(SAMPLES, dtype=torch.float32))

Records = list[dict[str, Any]]


@contextmanager
def setting(**asked: Any) -> Iterator[Records]:
    """Put settings into loaders for a while; the records of them come out."""
    records: Records = []
    settings = LoaderOverrides(asked, records.append)
    settings.install()
    try:
        yield records
    finally:
        settings.patches.undo()
    assert settings.trouble is None


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


class Own(DataLoader[Any]):
    """A user's loader with other argument names."""

    def __init__(self, data: Any, bs: int) -> None:
        super().__init__(data, bs, True)


def sizes(loader: DataLoader[Any]) -> set[int]:
    return {len(batch[0]) for batch in loader}


def test_settings_are_put_in_and_the_script_s_own_are_recorded() -> None:
    with setting(batch_size=6, num_workers=2, prefetch_factor=3, pin_memory=True) as records:
        loader = DataLoader(DATA, batch_size=4, shuffle=True)
    assert (loader.batch_size, loader.num_workers) == (6, 2)
    assert (loader.prefetch_factor, loader.pin_memory) == (3, True)
    (record,) = records
    assert record["found"] == {
        "batch_size": 4,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "persistent_workers": False,
    }
    assert record["set"] == {
        "batch_size": 6,
        "num_workers": 2,
        "prefetch_factor": 3,
        "pin_memory": True,
    }
    assert (record["data_set"], record["samples"], record["refused"]) == ("TensorDataset", 24, {})


def test_positional_arguments_are_replaced_too() -> None:
    with setting(batch_size=6, num_workers=0):
        loader = DataLoader(DATA, 4, True, None, None, 2)
    assert (loader.batch_size, loader.num_workers) == (6, 0)
    assert isinstance(loader.sampler, RandomSampler)


def test_a_subclass_is_set_where_it_calls_torch() -> None:
    with setting(batch_size=6) as records:
        loader = Own(DATA, bs=4)
    assert sizes(loader) == {6}
    assert records[0]["found"]["batch_size"] == 4


def test_without_settings_a_loader_is_as_ever_and_still_recorded() -> None:
    with setting() as records:
        loader = DataLoader(DATA, 4, num_workers=2)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (4, 2, 2)
    assert records[0]["found"]["prefetch_factor"] == 2
    assert records[0]["set"] == {}


def test_no_workers_take_along_all_that_needs_them() -> None:
    with setting(num_workers=0) as records:
        loader = DataLoader(
            DATA,
            4,
            num_workers=2,
            prefetch_factor=4,
            persistent_workers=True,
            timeout=5,
            multiprocessing_context="spawn",
        )
    assert sizes(loader) == {4}
    assert records[0]["set"] == {
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
    }


def test_what_means_nothing_without_workers_is_refused_with_the_reason() -> None:
    with setting(prefetch_factor=4, persistent_workers=True) as records:
        DataLoader(DATA, 4)
    assert set(records[0]["refused"]) == {"prefetch_factor", "persistent_workers"}
    assert "no workers" in records[0]["refused"]["prefetch_factor"]


def test_a_test_s_loader_keeps_its_batch_after_one_that_shuffles() -> None:
    with setting(batch_size=6, num_workers=1) as records:
        train = DataLoader(DATA, 4, shuffle=True)
        test = DataLoader(DATA, 4)
    assert (train.batch_size, test.batch_size) == (6, 4)
    assert (train.num_workers, test.num_workers) == (1, 1)
    assert "taken for an evaluation" in records[1]["refused"]["batch_size"]


def test_where_none_shuffles_every_loader_may_be_the_one_that_trains() -> None:
    with setting(batch_size=6):
        loaders = [DataLoader(DATA, 4), DataLoader(DATA, 8)]
    assert [each.batch_size for each in loaders] == [6, 6]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"batch_sampler": BatchSampler(SequentialSampler(DATA), 4, False)}, "batch_sampler"),
        ({"batch_sampler": [[0, 1], [2, 3]]}, "batch_sampler"),
        ({"batch_size": None}, "batch_size=None"),
    ],
)
def test_batches_that_others_make_are_left_alone(arguments: Any, reason: str) -> None:
    with setting(batch_size=6, num_workers=1) as records:
        loader = DataLoader(DATA, **arguments)
    assert loader.batch_size is None
    assert loader.num_workers == 1
    assert reason in records[0]["refused"]["batch_size"]
    assert records[0]["batches_by"] != "loader"


def test_an_iterable_data_set_is_set_and_warned_of() -> None:
    with setting(num_workers=2) as records:
        loader = DataLoader(Numbers(), 4)
    assert loader.num_workers == 2
    assert records[0]["samples"] is None
    assert "every worker" in records[0]["warning"]


def test_a_loader_made_again_from_its_attributes_is_the_same() -> None:
    with setting(batch_size=6, num_workers=2):
        first = DataLoader(DATA, 4)
        names = ("dataset", "batch_size", "sampler", "num_workers", "prefetch_factor", "timeout")
        again = DataLoader(**{name: getattr(first, name) for name in names})
        sampled = DataLoader(DATA, batch_sampler=first.batch_sampler)
    assert sizes(first) == sizes(again) == sizes(sampled) == {6}


def test_loaders_that_are_all_alike_are_recorded_once() -> None:
    with setting(batch_size=6) as records:
        for _ in range(5):
            DataLoader(DATA, 4, shuffle=True)
        DataLoader(DATA, 8, shuffle=True)
    assert [each["found"]["batch_size"] for each in records] == [4, 8]


def test_wrong_arguments_get_torch_s_own_answer() -> None:
    with setting(num_workers=1), pytest.raises(TypeError, match="no_such_thing"):
        DataLoader(DATA, no_such_thing=1)  # type: ignore[call-arg]
    with setting(num_workers=1), pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(DATA, sampler=RandomSampler(DATA), shuffle=True)


def test_afterwards_everything_is_as_before() -> None:
    before = DataLoader.__init__
    with setting(batch_size=6):
        assert inspect.signature(DataLoader.__init__) == inspect.signature(before)
    assert DataLoader.__init__ is before
    assert DataLoader(DATA, 4).batch_size == 4


def test_a_length_that_the_script_s_own_code_does_not_know_is_unknown() -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return iter(range(SAMPLES))

        def __len__(self) -> int:
            raise RuntimeError("who knows")

    with setting(batch_size=6) as records:
        DataLoader(DATA, 4, sampler=Endless())
    assert records[0]["samples"] is None


@pytest.mark.parametrize(
    ("arguments", "shuffled"),
    [
        ({}, False),
        ({"shuffle": True}, True),
        ({"sampler": RandomSampler(DATA)}, True),
        ({"sampler": SubsetRandomSampler([1, 2])}, True),
        ({"sampler": SequentialSampler(DATA)}, False),
        ({"sampler": DistributedSampler(DATA, 2, 0, shuffle=True)}, True),
        ({"sampler": DistributedSampler(DATA, 2, 0, shuffle=False)}, False),
        ({"batch_sampler": BatchSampler(RandomSampler(DATA), 4, False)}, True),
        ({"batch_sampler": [[0, 1]]}, False),
    ],
)
def test_it_is_seen_whether_a_loader_shuffles(arguments: Any, shuffled: bool) -> None:
    assert shuffles(arguments) == shuffled


@some.composite
def arguments(draw: Any) -> dict[str, Any]:
    """Arguments that torch takes."""
    workers = draw(some.integers(0, 3))
    batches = draw(some.sampled_from(["size", "none", "sampler", "default"]))
    given: dict[str, Any] = {"num_workers": workers}
    if workers:
        given["prefetch_factor"] = draw(some.none() | some.integers(1, 4))
        given["persistent_workers"] = draw(some.booleans())
        given["timeout"] = draw(some.sampled_from([0, 5]))
        given["multiprocessing_context"] = draw(some.sampled_from([None, "fork", "spawn"]))
    if batches == "size":
        given |= {"batch_size": draw(some.integers(1, 9)), "shuffle": draw(some.booleans())}
    elif batches == "none":
        given["batch_size"] = None
    elif batches == "sampler":
        given["batch_sampler"] = BatchSampler(SequentialSampler(DATA), 3, False)
    return given


asked_for = some.fixed_dictionaries(
    {},
    optional={
        "batch_size": some.integers(1, 9),
        "num_workers": some.integers(0, 3),
        "prefetch_factor": some.integers(1, 4),
        "pin_memory": some.booleans(),
        "persistent_workers": some.booleans(),
    },
)


@given(arguments(), asked_for, some.booleans())
def test_whatever_is_asked_torch_takes_it_and_it_is_set_or_refused(
    theirs: dict[str, Any], asked: dict[str, Any], may_train: bool
) -> None:
    decision = decide(theirs, asked, may_train=may_train)
    loader = DataLoader(DATA, **{**theirs, **decision.changes})
    for name, value in asked.items():
        without_effect = name == "persistent_workers" and not value
        assert name in decision.refused or without_effect or getattr(loader, name) == value


@given(arguments())
def test_nothing_asked_changes_nothing(theirs: dict[str, Any]) -> None:
    decision = decide(theirs, {})
    assert (decision.changes, decision.refused) == ({}, {})

"""A loader whose workers die, or never start, gives every batch once."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import time
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stepscope.data.loaders.dataloader import RecoveringLoader, make_loader
from stepscope.data.loaders.worker_pool import WorkerPool, end_worker_that_cannot_send
from stepscope.data.sample_order import BatchKey, EpochOrder
from stepscope.errors import DataError
from stepscope.train.split_loaders import TimedDataset

BATCHES = 12

# Torch warns of more workers than CPUs; a machine may have one.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Indices(Dataset):
    """Give the indices of a batch; do something else first where the worker is to have an accident.

    An accident happens once: `marker` is the file that remembers it.
    """

    def __init__(self, accident=None, at: int = 0, marker: Path | None = None) -> None:
        self.accident, self.at, self.marker = accident, at, marker

    def __len__(self):
        return BATCHES * 4 - 1

    def __getitem__(self, key):
        if self.accident is not None and key.indices[0] == self.at:
            if self.marker is None:
                self.accident()
            elif not self.marker.exists():
                self.marker.touch()
                self.accident()
        return key.epoch, key.indices


class Setting:
    """A loader, what it told, and what it gave."""

    def __init__(
        self, workers: int, dataset: Dataset, *, persistent: bool = False, **options: object
    ) -> None:
        self.order = EpochOrder(BATCHES * 4 - 1, 4, seed=1, shuffle="none", epoch=3)
        self.told = []
        self.worker_pool = WorkerPool(workers, self.told.append)

        make = partial(make_loader, dataset, persistent_workers=persistent, **options)
        self.loader = RecoveringLoader("train", self.order, make, self.worker_pool)

    def assert_whole(self, given) -> None:
        wanted = [(key.epoch, key.indices.tolist()) for key in self.order]
        assert [(epoch, indices.tolist()) for epoch, indices in given] == wanted

    def numbers(self) -> list[tuple[int, int]]:
        return [(each.before, each.after) for each in self.told]


@pytest.fixture
def setting():
    made = []

    def make(*args, **options) -> Setting:
        made.append(Setting(*args, **options))
        return made[-1]

    before = signal.getsignal(signal.SIGCHLD)
    yield make
    for each in made:
        each.loader.close()
        each.worker_pool.stop_watching()
    after = signal.getsignal(signal.SIGCHLD)
    # The first loader of a process makes torch set a handler of its own, for good.
    assert after is before or after.__module__ == "torch.utils.data._utils.signal_handling"
    assert multiprocessing.active_children() == []


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_end_of(process) -> None:
    while process.exitcode is None:
        time.sleep(0.01)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, True), (2, False)])
def test_without_an_accident_it_is_a_loader_like_any_other(setting, workers, persistent):
    made = setting(workers, Indices(), persistent=persistent)
    for made.order.epoch in (1, 2):
        made.assert_whole(iter(made.loader))
    assert made.told == []


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_dies_while_it_is_waited_for_is_replaced_by_its_fellows(
    setting, tmp_path, persistent
):
    dataset = Indices(kill_oneself, at=4 * 6, marker=tmp_path / "happened")
    made = setting(3, dataset, persistent=persistent)
    for made.order.epoch in (1, 2):
        made.assert_whole(iter(made.loader))
    (told,) = made.told
    assert (told.split, told.epoch, told.before, told.after) == ("train", 1, 3, 2)
    assert 1 <= told.batch <= 7
    assert "was killed by SIGKILL" in told.reason


def test_a_worker_that_leaves_without_a_word_is_a_lost_one(setting, tmp_path, monkeypatch):
    looks = _MultiProcessingDataLoaderIter._try_get_data  # torch looks for it every 5 s
    monkeypatch.setattr(looks, "__defaults__", (0.1,))
    dataset = Indices(lambda: os._exit(0), at=4 * 6, marker=tmp_path / "happened")
    made = setting(2, dataset)
    made.assert_whole(iter(made.loader))
    assert made.numbers() == [(2, 1)]
    assert "exited with code 0" in made.told[0].reason


class Tensors(Indices):
    def __getitem__(self, key):
        epoch, indices = super().__getitem__(key)
        return epoch, torch.tensor(indices)


def test_a_worker_that_cannot_pass_a_batch_on_is_a_lost_one(setting):
    """Torch would wait for that batch forever: `ulimit -n` is too low, or /dev/shm is full."""
    ours, most = os.getpid(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def open_no_more() -> None:
        if os.getpid() != ours:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))

    made = setting(
        2,
        Tensors(open_no_more, at=4 * 6),
        on_worker_start=lambda worker: end_worker_that_cannot_send(),
    )
    made.assert_whole(iter(made.loader))
    assert made.numbers() == [(2, 1), (1, 0)]
    assert "could not pass a batch on" in made.told[0].reason


def test_a_worker_that_dies_of_one_batch_each_time_leaves_the_batch_to_the_training(setting):
    ours = os.getpid()
    made = setting(2, Indices(lambda: ours == os.getpid() or kill_oneself(), at=4 * 6))
    made.assert_whole(iter(made.loader))
    assert made.numbers() == [(2, 1), (1, 0)]


def test_a_death_while_the_loop_computes_is_kept_for_the_next_wait(setting):
    made = setting(2, Indices())
    batches = iter(made.loader)
    given = [next(batches), next(batches)]
    victim = multiprocessing.active_children()[0]
    victim.kill()
    wait_for_the_end_of(victim)  # python code, in which a handler might raise
    assert made.told == []
    given += batches
    made.assert_whole(given)
    assert [(each.batch, each.before, each.after) for each in made.told] == [(3, 2, 1)]


def test_an_epoch_begun_in_its_middle_goes_on_from_where_it_was(setting):
    made = setting(2, Indices())
    made.order.skip = 5
    batches = iter(made.loader)
    given = [next(batches)]
    for victim in multiprocessing.active_children():
        victim.kill()
    given_before = None  # what the dead had made ready is taken first, and that may be some
    for batch in batches:
        if made.told and given_before is None:
            given_before = len(given)
        given.append(batch)
    made.assert_whole(given)
    assert made.told[0].batch == 5 + given_before + 1
    made.order.skip = 0
    made.assert_whole(iter(made.loader))


def test_workers_that_persist_and_die_between_two_epochs_are_missed_in_the_next(setting):
    made = setting(2, Indices(), persistent=True)
    made.assert_whole(iter(made.loader))
    victim = multiprocessing.active_children()[0]
    victim.kill()
    wait_for_the_end_of(victim)
    made.assert_whole(iter(made.loader))
    assert [(each.batch, each.before, each.after) for each in made.told] == [(1, 2, 1)]


def test_a_worker_that_one_loader_loses_is_lost_for_the_other(setting, tmp_path):
    made = setting(2, Indices(kill_oneself, at=0, marker=tmp_path / "happened"), persistent=True)
    other = setting(2, Indices(), persistent=True)
    other.loader._worker_pool = made.worker_pool
    other.assert_whole(iter(other.loader))
    made.assert_whole(iter(made.loader))
    assert len(multiprocessing.active_children()) == 2 + 1
    other.assert_whole(iter(other.loader))
    assert len(multiprocessing.active_children()) == 1 + 1
    assert made.numbers() == [(2, 1)]


@pytest.mark.parametrize(
    ("most", "code", "numbers"),
    [
        (0, errno.ENOMEM, [(3, 2), (2, 1), (1, 0)]),
        (1, errno.EAGAIN, [(3, 2), (2, 1)]),
    ],
)
def test_workers_that_cannot_be_started_are_done_without(setting, monkeypatch, most, code, numbers):
    made = setting(3, Indices())
    fork = os.fork

    def failing_fork() -> int:
        if len(multiprocessing.active_children()) == most:
            raise OSError(code, os.strerror(code))
        return fork()

    monkeypatch.setattr(os, "fork", failing_fork)
    batches = iter(made.loader)
    assert made.numbers() == numbers, "before the first batch is asked for"
    assert {each.reason for each in made.told} == {f"cannot start a worker: {os.strerror(code)}"}
    assert {each.batch for each in made.told} == {1}
    made.assert_whole(batches)
    made.assert_whole(iter(made.loader))
    assert made.numbers() == numbers


@pytest.mark.parametrize("error", [DataError("sample 24 is bad"), OSError(errno.EIO, "broken")])
def test_an_error_in_a_workers_own_code_is_an_error(setting, error):
    def fail() -> None:
        raise error

    made = setting(2, Indices(fail, at=4 * 6))
    with pytest.raises(type(error), match=str(error.args[-1])):
        list(made.loader)
    assert made.told == []


def test_a_batch_is_not_kept_while_the_loop_computes(setting):
    made = setting(0, Indices())
    batches = iter(made.loader)
    given = next(batches)
    still_there = weakref.ref(given[1])
    del given
    assert still_there() is None


def test_an_epoch_that_is_given_up_leaves_no_worker_behind(setting):
    made = setting(2, Indices())
    batches = iter(made.loader)
    next(batches)
    del batches
    assert multiprocessing.active_children() == []
    made.assert_whole(iter(made.loader))


def test_handlers_of_other_people_are_called_and_come_back(setting):
    heard = []

    def theirs(number, frame) -> None:
        heard.append(number)

    made = setting(1, Indices())
    made.assert_whole(iter(made.loader))  # from now on torch sets no handler any more
    made.worker_pool.stop_watching()
    before = signal.signal(signal.SIGCHLD, theirs)
    try:
        made.assert_whole(iter(made.loader))
        made.worker_pool.stop_watching()
        assert heard
        assert signal.getsignal(signal.SIGCHLD) is theirs
    finally:
        signal.signal(signal.SIGCHLD, before)


# --- artificial delays

DELAY_S = 0.0005


@pytest.mark.parametrize("samples", [1, 40])
def test_a_batch_comes_later_by_the_delay_of_all_its_samples(samples):
    batch, timing = TimedDataset(Indices(), DELAY_S)[BatchKey(1, np.arange(samples))]
    assert batch[1].tolist() == list(range(samples))
    assert timing.wall_ns >= samples * DELAY_S * 1e9
    if samples == 40:
        assert timing.cpu_ns < timing.wall_ns / 2, "it sleeps"

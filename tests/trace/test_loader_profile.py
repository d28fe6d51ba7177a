"""What a loader does while it makes batches: named parts, slow samples, the same data."""

from __future__ import annotations

import copy
import itertools
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from installed_hooks import watched
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from stepscope.records.types import LoaderFigures
from stepscope.trace import loader_profile
from stepscope.trace.event_buffer import HookState
from stepscope.trace.loader_profile import LoaderProfile, LoaderWork, TimedItems
from stepscope.trace.stack_sampler import StackSampler

OFTEN_S = 0.002


def wait(value: Any) -> Any:
    time.sleep(0.004)
    return value


class Blur:
    def __call__(self, value: Any) -> Any:
        time.sleep(0.004)
        return value


class Keep:
    def __call__(self, value: Any) -> Any:
        return value


KEEP = Keep()


class Compose:
    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for each in self.transforms:
            value = each(value)
        return value


class Samples(Dataset[Any]):
    """Numbers, changed by a transform."""

    def __init__(self, transform: Callable[[Any], Any] = KEEP, size: int = 40) -> None:
        self.transform, self.size = transform, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.tensor(float(index)))


def in_this_process(**options: Any) -> LoaderFigures:
    """Profile a loader without workers, as the tracer does."""
    with watched() as state:
        sampler = StackSampler(state, state.loader_profile.take_stack, interval_s=OFTEN_S)
        sampler.start()
        try:
            for _ in DataLoader(**options):
                pass
        finally:
            sampler.stop()
    return figures_of(state)


def figures_of(state: HookState) -> LoaderFigures:
    figures = state.loader_profile.figures()
    assert figures is not None
    return figures


def first_part(figures: LoaderFigures) -> tuple[str, str]:
    return figures["parts"][0]["kind"], figures["parts"][0]["name"]


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (Compose([Keep(), Blur(), Keep()]), "Blur"),
        (Compose([Keep(), Compose([wait])]), "wait"),
        (Blur(), "Blur"),
        (wait, "wait"),
        (torch.nn.Sequential(torch.nn.Identity()), None),
    ],
    ids=["chain", "nested chain", "object", "function", "quick module"],
)
def test_the_transform_that_takes_the_time_is_named(
    transform: Callable[[Any], Any], name: str | None
) -> None:
    figures = in_this_process(dataset=Samples(transform), batch_size=8)
    assert figures["samples"] == 40
    if name is not None:
        assert first_part(figures) == ("transform", name)
        assert str(figures["parts"][0]["line"]).startswith("test_loader_profile.py:")
        assert figures["parts"][0]["share"] > 0.7


def slow_collate(samples: list[Any]) -> Any:
    time.sleep(0.02)
    return torch.stack([part for sample in samples for part in sample.reshape(1, 1)])


def test_collating_is_named() -> None:
    figures = in_this_process(dataset=Samples(), batch_size=8, collate_fn=slow_collate)
    assert first_part(figures) == ("collate", "collate")


class Files(Samples):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, index: int) -> Any:
        with self.path.open("rb") as file:
            for _ in range(20):
                file.seek(0)
                content = file.read()
        return len(content)


def test_reading_files_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sample"
    path.write_bytes(bytes(2**20))
    assert first_part(in_this_process(dataset=Files(path), batch_size=8))[0] == "read"


class Pictures(Files):
    def __getitem__(self, index: int) -> Any:
        return len(Image.open(self.path).convert("RGB").tobytes())


def test_decoding_pictures_is_named(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    Image.effect_noise((1200, 1200), 50).save(path)
    figures = in_this_process(dataset=Pictures(path), batch_size=8)
    assert first_part(figures)[0] == "decode"


class RareWait(Samples):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.08 if index in (7, 23) else 0.0002)
        return index


def test_slow_samples_are_listed_by_their_index() -> None:
    figures = in_this_process(dataset=RareWait(size=200), batch_size=8, shuffle=True)
    slowest = figures["slow_samples"][:2]
    assert {each["index"] for each in slowest} == {7, 23}
    assert all(each["took_s"] >= 0.08 for each in slowest)
    assert figures["slow_share"] > 0.5


def test_even_samples_have_no_slow_share() -> None:
    work = LoaderWork()
    for index in range(100):
        work.add(index, 1_000_000 + index)
    assert work.slow_share() == 0.0


@pytest.mark.parametrize(("repeats", "share"), [(True, 0.5), (False, 0.0)])
def test_samples_are_slow_if_the_same_ones_are_in_every_epoch(repeats: bool, share: float) -> None:
    work = LoaderWork()
    for epoch in range(3):
        for index in range(400):
            # What other processes delay is another sample each time.
            slow = index % 40 == (7 if repeats else 7 + epoch)
            work.add(index, 40_000_000 if slow else 1_000_000)
    assert work.slow_share() == pytest.approx(share, abs=0.15)


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        (torch.tensor(3), 3),
        ("a name" * 100, ("a name" * 100)[:80]),
        ((1, 2), "a tuple"),
        (object(), "a object"),
    ],
)
def test_any_index_can_be_kept(index: Any, kept: int | str) -> None:
    work = LoaderWork()
    work.add(index, 5)
    assert work.slowest == [(5, kept)]


class Whole(Samples):
    """A data set that makes all samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index for index in indices]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_makes_whole_batches_still_does(workers: int) -> None:
    with watched():
        batches = [batch.tolist() for batch in DataLoader(Whole(), 20, num_workers=workers)]
    assert batches == [[-index for index in range(20)], [-index for index in range(20, 40)]]


def numbers() -> Iterator[int]:
    for number in range(24):
        time.sleep(0.005)
        yield number


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return numbers()


def test_an_iterable_data_set_is_profiled_as_a_whole() -> None:
    figures = in_this_process(dataset=Stream(), batch_size=8)
    assert figures["samples"] == 0
    assert figures["sample_s"] is None
    assert first_part(figures)[0] == "dataset"


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_send_their_profile(context: str) -> None:
    with watched() as state:
        loader = DataLoader(
            Samples(wait, size=160), batch_size=8, num_workers=1, multiprocessing_context=context
        )
        total = sum(float(batch.sum()) for batch in loader)
    figures = figures_of(state)
    assert total == sum(range(160))
    assert 0 < figures["samples"] <= 160
    assert figures["sample_s"] is not None
    assert figures["sample_s"] >= 0.004
    assert first_part(figures) == ("transform", "wait")


class Broken(Samples):
    def __getitem__(self, index: int) -> Any:
        raise ValueError(f"sample {index} is broken")


def test_the_traceback_of_a_worker_shows_none_of_our_frames() -> None:
    with watched(), pytest.raises(ValueError, match="sample 0 is broken") as caught:
        list(DataLoader(Broken(), batch_size=4, num_workers=1))
    traceback.clear_frames(caught.tb)
    assert "test_loader_profile.py" in str(caught.value)
    assert "stepscope/trace/" not in str(caught.value)


def test_a_timed_data_set_is_the_data_set_in_all_else() -> None:
    samples = Samples(size=7)
    timed = TimedItems(samples, LoaderProfile(), None)
    assert isinstance(timed, Samples)
    assert timed.size == 7
    assert timed.transform is samples.transform
    assert timed[3] == samples[3]
    assert copy.copy(timed).size == 7
    with pytest.raises(AttributeError, match="absent"):
        _ = timed.absent


def test_samples_that_take_microseconds_are_not_timed_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_profile, "now_ns", itertools.count(step=2000).__next__)
    profile, data = LoaderProfile(), TensorDataset(torch.zeros(2000, 1))
    loader = DataLoader(data, batch_size=100)
    for _ in range(2):
        iterator = iter(loader)
        profile.watch(iterator._dataset_fetcher)
        assert len(list(iterator)) == 20
        assert iterator._dataset_fetcher.dataset is data
    assert profile.work.by_size.total() == 256


def test_a_data_set_is_not_timed_twice() -> None:
    class Fetcher:
        dataset: Any = Samples()
        auto_collation = True

    fetcher, profile = Fetcher(), LoaderProfile()
    profile.watch(fetcher)
    once = fetcher.dataset
    profile.watch(fetcher)
    assert fetcher.dataset is once
    profile.watch(None)


def test_the_work_of_two_processes_is_added() -> None:
    profile = LoaderProfile()
    for worker in range(2):
        slowest: list[tuple[int, int | str]] = [(1_000_000 + worker, worker)]
        stacks = Counter({("transform", "Blur", None): 5})
        profile.work.merge(LoaderWork(10_000_000, Counter({20: 10}), slowest, stacks))
    figures = profile.figures()
    assert figures is not None
    assert figures["samples"] == 20
    assert figures["sample_s"] == pytest.approx(0.001)
    assert [each["index"] for each in figures["slow_samples"]] == [1, 0]
    assert figures["parts"] == [
        {"kind": "transform", "name": "Blur", "line": None, "share": 1.0, "samples": 10}
    ]


def test_a_profile_of_nothing_is_none() -> None:
    assert LoaderProfile().figures() is None

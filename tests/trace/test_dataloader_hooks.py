"""What a script sees of its loaders while they are watched: batches and errors as before."""

from __future__ import annotations

import gc
import re
import time
import traceback
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from installed_hooks import data, details, events_of, model, watched
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from stepscope.trace import dataloader_hooks
from stepscope.trace import event_buffer as e

Pair = namedtuple("Pair", ["image", "label"])


def test_workers_that_outlive_them_give_plain_batches() -> None:
    loader = DataLoader(data(), batch_size=4, num_workers=2, persistent_workers=True)
    plain = [[part.tolist() for part in batch] for batch in loader.__class__(data(), batch_size=4)]
    with watched():
        begun = iter(loader)
        first = next(begun)
    rest = list(begun)
    assert [[part.tolist() for part in batch] for batch in [first, *rest]] == plain
    assert [[part.tolist() for part in batch] for batch in loader] == plain
    del begun
    loader._iterator = None


class Strange(Dataset[Any]):
    """Samples of a kind of their own."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Bundle:
    """A batch that is no tensor and no list, and knows how it is pinned."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = torch.tensor(parts)
        self.pinned = False

    def pin_memory(self) -> Bundle:
        self.pinned = True
        return self


def pair(index: int) -> Pair:
    return Pair(torch.full((2,), float(index)), index)


def mapping(index: int) -> dict[str, Any]:
    return {"id": f"name {index}", "image": torch.full((2,), float(index))}


def text(index: int) -> str:
    return f"sentence {index}"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("make", "collate", "kind", "samples"),
    [
        (pair, None, Pair, 2),
        (mapping, None, dict, 2),
        (text, None, list, None),
        (float, Bundle, Bundle, 2),
    ],
)
def test_what_the_script_sees_of_a_batch_is_unchanged(
    make: Any, collate: Any, kind: type, samples: int | None, workers: int
) -> None:
    with watched() as hooks:
        loader = DataLoader(Strange(make), batch_size=2, collate_fn=collate, num_workers=workers)
        batches = list(loader)
        assert type(loader._get_iterator()).__module__.startswith("torch.")
    assert [type(batch) for batch in batches] == [kind, kind]
    counted = [detail[0] for detail in details(hooks, e.FETCHED)]
    assert counted == [samples, samples]
    if kind is Bundle:
        assert batches[1].parts.tolist() == [2.0, 3.0]


def fail_at_two(index: int) -> torch.Tensor:
    if index == 2:
        raise KeyError(f"sample {index} is broken")
    return torch.zeros(1)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_data_set_comes_through_as_it_is(workers: int) -> None:
    def error() -> tuple[list[Any], str]:
        with pytest.raises(KeyError) as caught:
            list(DataLoader(Strange(fail_at_two), batch_size=2, num_workers=workers))
        shown = "".join(traceback.format_exception(caught.value))
        traceback.clear_frames(caught.tb)  # what waits for the collector waits 5 s for its workers
        # Our own frames stand between torch's; nothing else is other than it was.
        frame = re.compile(r' *File ".*stepscope/trace/.*\n(?!  File)(.*\n)(?: *\^+\n)?')
        return [type(caught.value), caught.value.args[0] if not workers else ""], frame.sub(
            "", shown
        )

    plain, shown = error()
    with watched() as hooks:
        under_hooks, shown_under_hooks = error()
        assert not hooks.busy, "and the hooks are ready for what comes next"
    assert "sample 2 is broken" in shown
    assert under_hooks == plain
    if workers:
        assert shown_under_hooks == shown


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(6) if info is None else range(info.id, 6, info.num_workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_data_set_is_read_as_it_is(workers: int) -> None:
    plain = [batch.tolist() for batch in DataLoader(Numbers(), batch_size=2, num_workers=workers)]
    with watched() as hooks:
        loader = DataLoader(Numbers(), batch_size=2, num_workers=workers)
        assert [batch.tolist() for batch in loader] == plain
    [(length, _)] = details(hooks, e.ITERATED)
    assert length is None


def init_worker(worker: int) -> None:
    torch.manual_seed(100 + worker)


def noise(index: int) -> torch.Tensor:
    return torch.rand(1)


def test_the_scripts_own_start_of_a_worker_is_done_and_kept() -> None:
    def numbers() -> list[Any]:
        loader = DataLoader(Strange(noise), num_workers=2, worker_init_fn=init_worker)
        found = [batch.tolist() for batch in loader]
        assert loader.worker_init_fn is init_worker
        return found

    plain = numbers()
    with watched():
        assert numbers() == plain


def test_iterations_of_one_loader_are_known_to_be_of_one_and_of_two_of_two() -> None:
    with watched() as hooks:
        loader = DataLoader(data(), batch_size=4)
        old = iter(loader)
        first = next(old)
        new = iter(loader)
        assert torch.equal(next(new)[0], first[0])
        assert next(old)[0].tolist() != first[0].tolist()
        others = [iter(DataLoader(data(), batch_size=4)) for _ in range(2)]
        assert len(others) == 2
    keys = [key for kind, _, key, _, _ in events_of(hooks) if kind == e.FETCH]
    assert keys[0] == keys[2] != keys[1]
    iterations = details(hooks, e.ITERATED)
    assert iterations[0] == iterations[1]
    assert len({loader for _, loader in iterations}) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_call_tells_its_samples_where_it_is_not_sure_that_the_last_batch_is_used(
    workers: int,
) -> None:
    net, loader = model(), DataLoader(data(), batch_size=4, num_workers=workers)
    with watched() as hooks:
        images, _ = next(iter(loader))
        net(images)  # of an iterator that is gone
        batches = iter(loader)
        images, _ = next(batches)
        net(images)  # fetched just before
        images, _ = next(batches), next(batches)
        net(images[0])  # one of two
        gc.collect()
        samples = [e.Call(*detail).samples for detail in details(hooks, e.CALL)]
        del batches
    assert samples == [4, None, 4]


@pytest.mark.parametrize("are_quick", [False, True])
def test_cpu_time_is_read_of_some_steps_where_reading_it_would_take_too_much_of_them(
    monkeypatch: pytest.MonkeyPatch, are_quick: bool
) -> None:
    monkeypatch.setattr(dataloader_hooks, "_QUICK_NS", 10**12 if are_quick else 0)
    of_each_step = TensorDataset(torch.ones(4 * 200, 4))
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with watched() as hooks:
        batches = iter(DataLoader(of_each_step, batch_size=4))
        for first, second in zip(batches, batches, strict=True):  # two a step
            net(torch.cat([*first, *second])).sum().backward()
            optimizer.step()
        for (batch,) in DataLoader(of_each_step, batch_size=4):
            net(batch).sum().backward()
            optimizer.step()
    known = [detail[1][3] is not None for detail in details(hooks, e.FETCHED)]
    assert all(known[:200]), "the first hundred steps have it all"
    one_in = dataloader_hooks._CPU_OF_ONE_STEP_IN if are_quick else 1
    assert [at for at, is_known in enumerate(known[200:]) if is_known] == [*range(0, 200, one_in)]


def test_what_reading_the_cpu_time_takes_is_waiting_and_no_work_of_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    def slowly_ns() -> int:
        nonlocal asked
        asked += 1
        time.sleep(0 if asked % 2 else 0.02)  # the kernel is busy when the batch is there
        return time.thread_time_ns()

    monkeypatch.setattr(dataloader_hooks, "own_cpu_ns", slowly_ns)
    with watched() as hooks:
        list(DataLoader(data(4), batch_size=4))
    times_ns = {kind: time_ns for kind, time_ns, *_ in reversed(events_of(hooks))}
    [(_, (_, _, made_in_ns, _))] = details(hooks, e.FETCHED)
    waited_ns = times_ns[e.FETCHED] - times_ns[e.FETCH]
    assert waited_ns - made_in_ns >= 19_000_000

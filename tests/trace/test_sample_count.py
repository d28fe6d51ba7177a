"""How many samples a batch has, whatever it is made of; nothing of the script's own is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from installed_hooks import details, watched
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stepscope.trace import event_buffer as e
from stepscope.trace.sample_count import samples_of, samples_of_arguments

IMAGES, LABELS = torch.zeros(7, 3), torch.zeros(7)


class Nested:
    """Images made equally large, as DETR has them."""

    def __init__(self, tensors: torch.Tensor) -> None:
        self.tensors, self.mask = tensors, None


@dataclass
class Pair:
    name: str
    images: torch.Tensor
    labels: torch.Tensor


@dataclass(slots=True)
class Slotted:
    images: torch.Tensor
    labels: Any = None


class Shy:
    """It does not like to be asked."""

    def __init__(self) -> None:
        self.data = {"x": IMAGES}

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __len__(self) -> int:
        raise AssertionError("asked for its length")

    @property
    def images(self) -> torch.Tensor:
        raise AssertionError("asked for a property")


class WithoutEnd(Sequence):
    """A batch whose parts are made when they are asked for."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: Any) -> torch.Tensor:
        assert index == 0, "the first tells enough"
        return IMAGES


OBJECTS = [
    Nested(IMAGES),
    Pair("train", IMAGES, LABELS),
    Slotted(IMAGES),
    SimpleNamespace(step=torch.tensor(3), meta={"id": 4}, image=IMAGES),
    SimpleNamespace(images=[IMAGES, IMAGES]),
    SimpleNamespace(batch_size=7, tokens=torch.zeros(30, 7)),
    {"inputs": Nested(IMAGES)},
]
DATA_SET = SimpleNamespace(samples=torch.zeros(60_000, 2))
TOKENS = {"ids": torch.zeros(7, 5), "mask": torch.zeros(7, 5), "names": ["x"] * 7}
SIZED = tuple(torch.zeros(3, 20 + side, 30) for side in range(5))  # images of any size


def targets(*boxes: int) -> tuple[dict[str, torch.Tensor], ...]:
    return tuple({"boxes": torch.zeros(n, 4), "labels": torch.zeros(n)} for n in boxes)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        *((batch, 7) for batch in (*OBJECTS, (Nested(IMAGES), LABELS), WithoutEnd())),
        # An object for each sample, or for each input.
        ([Pair(str(n), torch.zeros(3, 9 + n), torch.zeros(2)) for n in range(5)], 5),
        ([Slotted(torch.zeros(n + 1), torch.zeros(n + 1)) for n in range(5)], 5),
        ([Slotted(IMAGES, LABELS), Slotted(IMAGES, LABELS)], 7),
        # An object that an object holds is not a batch.
        (SimpleNamespace(data_set=DATA_SET, size=3), None),
        (SimpleNamespace(data_set=DATA_SET, images=IMAGES), 7),
        # A target for each image.
        (targets(2, 1, 3, 2), 4),
        ((object(), targets(2, 1, 3, 2)), 4),
        ((object(), [*targets(2, 1, 3, 2)]), 4),
        ([*targets(8, 8)], 8),  # two batches of one kind
        ((SIZED, tuple({"boxes": torch.zeros(side, 4)} for side in range(5))), 5),
        ([{"image": image} for image in SIZED], 5),
        ([{"image": image, "boxes": torch.zeros(3, 4), "id": 7} for image in SIZED], 5),
        ((SIZED, tuple(torch.zeros(side) for side in range(5))), 5),
        (([torch.zeros(7, 2), IMAGES], [LABELS, LABELS]), 7),
        # Mappings and tuples of all samples.
        ([{"image": IMAGES, "mask": torch.zeros(7, 1)}, LABELS], 7),
        ((TOKENS, LABELS), 7),
        ([TOKENS, TOKENS], 7),
        (([TOKENS, TOKENS], LABELS), 7),
        (((torch.zeros(7, 9), LABELS.long()), (torch.zeros(7, 4), LABELS.long())), 7),
    ],
)
def test_the_samples_of_a_batch_are_found_whatever_it_is_made_of(
    batch: Any, samples: int | None
) -> None:
    assert samples_of(batch) == samples


def test_nothing_of_an_object_is_called() -> None:
    assert samples_of(Shy()) == samples_of((Shy(), LABELS)) == 7


@pytest.mark.parametrize("batch", OBJECTS)
def test_an_object_among_the_arguments_of_a_call_tells_its_samples(batch: Any) -> None:
    assert samples_of_arguments((None, batch)) == 7


class Strange(dict):
    def values(self) -> Any:
        raise OSError("the file is closed")


def test_what_cannot_be_looked_into_tells_nothing() -> None:
    without_end: list[Any] = []
    without_end.append(without_end)
    for batch in (None, "words", 3, ["a", "b"], object(), nn.Linear, len, Strange(), without_end):
        assert samples_of(batch) is None
        assert samples_of(SimpleNamespace(it=batch)) is None
        assert samples_of_arguments((batch,)) is None
    assert samples_of_arguments(()) is None


def test_a_long_list_beside_the_batch_is_not_gone_through() -> None:
    class Counted(list):
        taken = 0

        def __iter__(self) -> Any:
            for each in super().__iter__():
                self.taken += 1
                yield each

    words = Counted(["word"] * 50_000)
    assert samples_of({"words": words, "images": IMAGES}) == 7
    assert words.taken < 100


def test_a_list_of_images_tells_only_with_a_target_for_each() -> None:
    images = [*SIZED]
    assert samples_of_arguments((images,)) is None
    assert samples_of_arguments((images, [{"boxes": torch.zeros(2, 4)} for _ in images])) == 5
    assert samples_of_arguments(([{"image": image} for image in images],)) == 5


class OfAnObject(nn.Linear):
    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch.images)


def test_a_call_with_an_object_is_counted_by_it() -> None:
    network = OfAnObject(3, 2)
    with watched() as hooks:
        network(Slotted(IMAGES))
        network(batch=Slotted(IMAGES[:4]))
    assert [e.Call(*how).samples for how in details(hooks, e.CALL)] == [7, 4]


class Broken(Dataset[torch.Tensor]):
    """Samples of which one cannot be read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise OSError("unreadable")
        return torch.ones(3)


def test_a_batch_that_could_not_be_made_has_no_samples_and_the_next_its_own() -> None:
    batches = iter(DataLoader(Broken(), batch_size=4))
    with watched() as hooks:
        next(batches)
        with pytest.raises(OSError, match="unreadable"):
            next(batches)
        next(batches)
        list(DataLoader(TensorDataset(torch.ones(10, 3)), batch_size=4))
    samples = [how[0] for how in details(hooks, e.FETCHED)]
    assert samples == [4, None, 2, 4, 4, 2]

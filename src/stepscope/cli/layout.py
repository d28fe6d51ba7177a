"""What a network is built for: the shape of a sample and the number of classes, as flags say."""

from __future__ import annotations

import re

from stepscope.errors import RequestError
from stepscope.models import registry

_OWN_INPUT, _OWN_CLASSES = (3, 32, 32), 10
_WHOLE = re.compile(r"\s*([1-9][0-9]{0,8})\s*", re.ASCII)


def layout_of(model: str, shape: str | None, classes: str | None) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes: those asked for, else the zoo's.

    Raises:
        RequestError: the model is unknown, or a flag is no shape or no number.
    """
    registry.check_name(model)
    entry = registry.ZOO.get(model)
    sample_shape: tuple[int, ...] = entry.input_shape if entry else _OWN_INPUT
    count = entry.classes if entry else _OWN_CLASSES
    return (
        sample_shape if shape is None else _read_shape(shape),
        count if classes is None else _read_classes(classes),
    )


def _read_shape(text: str) -> tuple[int, ...]:
    read = [_WHOLE.fullmatch(part) for part in text.split(",")]
    numbers = tuple(int(part[1]) for part in read if part)
    if len(numbers) < len(read):
        raise RequestError(
            "--input: wanted the shape of one sample without the batch, whole numbers of 1 or more "
            f"with commas between them, like 3,32,32; found {text!r}."
        )
    return numbers


def _read_classes(text: str) -> int:
    read = _WHOLE.fullmatch(text)
    if read is None:
        raise RequestError(f"--classes: wanted a whole number of 1 or more, found {text!r}.")
    return int(read[1])

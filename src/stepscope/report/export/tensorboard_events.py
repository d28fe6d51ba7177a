"""A run as scalars for TensorBoard: time and loss by step, accuracy by epoch, memory by time."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence

from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.report.export import nothing_recorded

# --- The format: scalars in Protocol Buffers, in records with checksums


_INT64 = 2**64 - 1


def first_record(time_s: float) -> bytes:
    """Return the first record: the time, and the version of the format.

    From the second version on, steps may come in any order.
    """
    return _record(_double(1, time_s) + _content(3, b"brain.Event:2"))


def scalars_record(time_s: float, step: int, scalars: Iterable[tuple[bytes, float]]) -> bytes:
    """Return a record of scalars of one step, each with its tag from `tag_of`."""
    summary = b"".join(tag + _float32(value) for tag, value in scalars)
    return _record(_double(1, time_s) + _number(2, step) + _content(5, summary))


def tag_of(name: str) -> bytes:
    """Return the bytes of a scalar before its value, which are the same at every step."""
    before = _content(1, name.encode()) + _key(2, kind=5)
    return _key(1, kind=2) + _varint(len(before) + 4) + before


# Protocol Buffers: a field is its number and type, then its value.


def _key(field: int, *, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _number(field: int, value: int) -> bytes:
    return _key(field, kind=0) + _varint(value & _INT64)


def _double(field: int, value: float) -> bytes:
    return _key(field, kind=1) + struct.pack("<d", value)


def _content(field: int, content: bytes) -> bytes:
    return _key(field, kind=2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encode an integer seven bits at a time, the lowest first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # a loss beyond the range of a float
        return struct.pack("<f", math.copysign(math.inf, value))


# Records: a length and a content, each with its checksum.


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C that the format requires."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_OF_BYTE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_OF_BYTE = [_crc_of(byte) for byte in range(256)]

FOLDER = "tensorboard"
FILE = "events.out.tfevents.stepscope"  # TensorBoard looks for `tfevents` in file names

_OF_STEPS = ("step_s", *(f"{phase}_s" for phase in schema.PHASES), "loss")
_OF_EPOCHS = ("loss", "accuracy", "top5", "samples_per_s")
_OF_TELEMETRY = (
    *("pss_bytes", "rss_bytes", "workers_private_bytes", "swap_bytes", "available_bytes"),
    *("device_memory_bytes", "device_percent", "power_w", "temperature_c"),
)

# Time, step, scalars.
Event = tuple[float, int, list[tuple[bytes, float]]]


def encode(run: Run) -> Iterator[tuple[bytes, int]]:
    """Yield the records of an event file, each with its number of events.

    The step of a training step is its row, counted from 1 through all epochs; of an epoch, its
    number; of a telemetry sample, milliseconds since the start of the run.

    Raises:
        AnswerIsNo: no step was recorded.
    """
    if not len(run.steps):
        raise nothing_recorded(run, "training step")
    began_s = float(run.info.get("started_unix_s") or 0)
    yield first_record(began_s), 0
    for time_s, step, scalars in _events(run):
        if scalars:
            yield scalars_record(began_s + time_s, step, scalars), 1


def _events(run: Run) -> Iterator[Event]:
    steps, telemetry = run.steps, run.telemetry
    numbers = range(1, len(steps) + 1)
    yield from _rows(steps, steps["start_s"], numbers, "steps/", _OF_STEPS)
    for split in ("train", "test", "validation"):
        epochs = _of_split(run.epochs, split)
        yield from _rows(epochs, epochs["start_s"], epochs["epoch"], f"epochs/{split}_", _OF_EPOCHS)
    times_s = telemetry["time_s"]
    yield from _rows(telemetry, times_s, map(_in_ms, times_s), "telemetry/", _OF_TELEMETRY)


def _rows(
    table: Table,
    times_s: Sequence[float | None],
    steps: Iterable[int | None],
    group: str,
    columns: Sequence[str],
) -> Iterator[Event]:
    """Yield the rows of a table whose time and step are known."""
    tags = [tag_of(f"{group}{column}") for column in columns]
    rows = zip(*(table[column] for column in columns), strict=True)
    for time_s, step, values in zip(times_s, steps, rows, strict=True):
        if time_s is not None and step is not None:
            known = [each for each in zip(tags, values, strict=True) if each[1] is not None]
            yield time_s, step, known


def _of_split(epochs: Table, split: str) -> Table:
    chosen = [row for row, found in enumerate(epochs["split"]) if found == split]
    return Table({name: [values[row] for row in chosen] for name, values in epochs.columns.items()})


def _in_ms(time_s: float | None) -> int | None:
    return round(time_s * 1000) if time_s is not None and math.isfinite(time_s) else None

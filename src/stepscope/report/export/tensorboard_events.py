"""A run as scalars for TensorBoard: time and loss by step, accuracy by epoch, memory by time.

An event file is a sequence of records with checksums, each an `Event` in Protocol Buffers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence

from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.report.export import nothing_recorded

FOLDER = "tensorboard"
FILE = "events.out.tfevents.stepscope"  # TensorBoard looks for `tfevents` in file names

_OF_STEPS = ("step_s", *(f"{phase}_s" for phase in schema.PHASES), "loss")
_OF_EPOCHS = ("loss", "accuracy", "top5", "samples_per_s")
_OF_TELEMETRY = (
    *("pss_bytes", "rss_bytes", "workers_private_bytes", "swap_bytes", "available_bytes"),
    *("device_memory_bytes", "device_percent", "power_w", "temperature_c"),
)


def encode(run: Run) -> Iterator[tuple[bytes, int]]:
    """Yield the records of an event file, each with its number of events.

    The step of a training step is its row, counted from 1 through all epochs; of an epoch, its
    number; of a telemetry sample, milliseconds since the start of the run.
    """
    if not len(run.steps):
        raise nothing_recorded(run, "training step")
    started_s = float(run.info.get("started_unix_s") or 0)
    # From the second version of the format on, steps may come in any order.
    yield _record(_field(1, started_s) + _field(3, b"brain.Event:2")), 0
    numbers = range(1, len(run.steps) + 1)
    yield from _rows(run.steps, "start_s", numbers, "steps/", _OF_STEPS, started_s)
    for split in ("train", "test", "validation"):
        rows = [row for row, found in enumerate(run.epochs["split"]) if found == split]
        columns = run.epochs.columns.items()
        epochs = Table({name: [values[row] for row in rows] for name, values in columns})
        group = f"epochs/{split}_"
        yield from _rows(epochs, "start_s", epochs["epoch"], group, _OF_EPOCHS, started_s)
    times_ms = [
        None if time_s is None or not math.isfinite(time_s) else round(time_s * 1000)
        for time_s in run.telemetry["time_s"]
    ]
    yield from _rows(run.telemetry, "time_s", times_ms, "telemetry/", _OF_TELEMETRY, started_s)


def _rows(
    table: Table,
    time_column: str,
    steps: Iterable[int | None],
    group: str,
    columns: Sequence[str],
    started_s: float,
) -> Iterator[tuple[bytes, int]]:
    """Yield a record for each row whose time and step are known."""
    # The bytes of a scalar before its value are the same at every step.
    tags = []
    for column in columns:
        tag = _field(1, f"{group}{column}".encode()) + _varint(2 << 3 | 5)
        tags.append(_varint(1 << 3 | 2) + _varint(len(tag) + 4) + tag)
    rows = zip(*(table[column] for column in columns), strict=True)
    for time_s, step, values in zip(table[time_column], steps, rows, strict=True):
        pairs = zip(tags, values, strict=True)
        summary = b"".join(tag + _float32(value) for tag, value in pairs if value is not None)
        if summary and time_s is not None and step is not None:
            event = _field(1, started_s + time_s) + _field(2, step) + _field(5, summary)
            yield _record(event), 1


def _field(number: int, value: float | int | bytes) -> bytes:
    """Encode a field of Protocol Buffers: its number and type, then its value."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    return _varint(number << 3) + _varint(value & (2**64 - 1))


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


def _record(content: bytes) -> bytes:
    """Return a record: a length and a content, each with its checksum."""
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_OF_BYTE = [_crc_of(byte) for byte in range(256)]


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C that the format requires."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_OF_BYTE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)

"""TensorBoard's event files: scalars in Protocol Buffers, in records with checksums.

The few messages that a scalar needs have not changed since TensorBoard's first release. They are
written here directly: the libraries that do it bring numpy or torch with them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

_INT64 = 2**64 - 1


def first_record(time_s: float) -> bytes:
    """Begin a file: say when, and which version of the format it has.

    From the second version on, steps may come in any order.
    """
    return _record(_double(1, time_s) + _content(3, b"brain.Event:2"))


def scalars_record(time_s: float, step: int, scalars: Iterable[tuple[bytes, float]]) -> bytes:
    """Write scalars of one step at one time, each with its tag as `tag_of` gives it."""
    summary = b"".join(tag + _float32(value) for tag, value in scalars)
    return _record(_double(1, time_s) + _number(2, step) + _content(5, summary))


def tag_of(name: str) -> bytes:
    """Give all of a scalar but the four bytes of its value: the same at every step."""
    before = _content(1, name.encode()) + _key(2, kind=5)
    return _key(1, kind=2) + _varint(len(before) + 4) + before


# Protocol Buffers: a field is its number and kind, then its value.


def _key(field: int, *, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _number(field: int, value: int) -> bytes:
    return _key(field, kind=0) + _varint(value & _INT64)


def _double(field: int, value: float) -> bytes:
    return _key(field, kind=1) + struct.pack("<d", value)


def _content(field: int, content: bytes) -> bytes:
    return _key(field, kind=2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Write a whole number seven bits at a time, the lowest first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # a loss that exploded
        return struct.pack("<f", math.copysign(math.inf, value))


# Records: a length and a content, each with its checksum.


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(data: bytes) -> bytes:
    """Give CRC-32C, rotated and shifted by a constant as the format wants it."""
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

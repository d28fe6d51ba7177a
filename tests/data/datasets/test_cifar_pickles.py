"""A pickled batch is read, and no instruction of it is run."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.data.datasets.cifar import read_batch
from stepscope.errors import DataError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Calls:
    """An object whose pickle is a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def a_python_2_batch(rows: int, labels: list[int]) -> bytes:
    """Write what cPickle of Python 2 wrote for CIFAR-10: strings are bytes, protocol 2."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    pixels = bytes(range(256)) * 12 * rows
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + (b"(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR")
        + b"(K\x01(" + (b"J" + struct.pack("<i", rows)) + b"M\x00\x0ct"
        + b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
        + b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89" + b"T" + struct.pack("<i", len(pixels)) + pixels + b"tb"
    )  # fmt: skip
    classes = b"](" + b"".join(b"K" + bytes([one]) for one in labels) + b"e"
    name = text(b"batch_label") + text(b"training batch 1 of 5")
    return (
        b"\x80\x02}(" + name + text(b"data") + array + text(b"labels") + classes
        + text(b"filenames") + b"](" + text(b"leptodactylus_pentadactylus_s_000004.png") + b"eu."
    )  # fmt: skip


@pytest.mark.parametrize("protocol", range(5))
def test_a_batch_is_read_from_pickles_of_python_3(protocol):
    images = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    batch = {b"labels": [6, 9, 1], b"data": images, b"filenames": [b"a", b"b", b"c"]}
    assert read_batch(pickle.dumps(batch, protocol), "x") == (images.tobytes(), [6, 9, 1])


def test_a_python_2_batch_of_cifar10_is_read():
    pixels, labels = read_batch(a_python_2_batch(3, [6, 9, 1]), "data_batch_1")
    assert labels == [6, 9, 1]
    assert pixels == bytes(range(256)) * 12 * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_system_command_is_not_run(tmp_path, protocol):
    trace = tmp_path / "trace"
    call = Calls(os.system, f"touch {trace}")
    read_batch(pickle.dumps({"data": [call], "labels": [call, 1]}, protocol), "x")
    assert not trace.exists()


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
        b"T\xff\xff\xff\x7fx.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"(" * 100_000 + b".",
        b"]" * 50_000 + b"a" * 49_999 + b".",
        b"",
        b"N",
    ],
)
def test_bombs_and_broken_pickles_are_errors_of_ours(bomb):
    with pytest.raises(DataError, match=r"x (is not a readable pickle|has no b'data')"):
        read_batch(bomb, "x")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_at_all_lead_to_any_other_error(content):
    with contextlib.suppress(DataError):
        read_batch(content, "x")


@settings(deadline=None)
@given(st.data())
def test_no_change_to_a_real_batch_leads_to_any_other_error(data):
    written = bytearray(a_python_2_batch(1, [4]))
    # The head and the tail: in between lie pixels.
    places = st.integers(0, 130) | st.integers(len(written) - 90, len(written) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        written[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        read_batch(bytes(written), "x")

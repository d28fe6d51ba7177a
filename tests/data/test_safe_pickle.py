"""A pickle may hold data and nothing else."""

from __future__ import annotations

import builtins
import contextlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepscope.data.safe_pickle import load
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


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)
dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.byte_string_dtypes(min_len=1)
)


class TestData:
    @settings(deadline=None)
    @given(plain, st.sampled_from([3, 4, 5]))
    def test_plain_data_comes_back_as_it_was(self, value: Any, protocol: int) -> None:
        assert load(pickle.dumps(value, protocol), "x") == value

    @settings(deadline=None)
    @given(hnp.arrays(dtypes, hnp.array_shapes(max_dims=3, min_side=0)), st.sampled_from(PROTOCOLS))
    def test_arrays_of_plain_types_come_back_as_they_were(
        self, value: np.ndarray, protocol: int
    ) -> None:
        written = pickle.dumps([value], min(protocol, 4))  # 5 has a function of its own
        (found,) = load(written, "x")
        (wanted,) = pickle.loads(written)
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.tobytes() == wanted.tobytes()

    def test_both_spellings_of_numpys_module_are_known(self) -> None:
        written = pickle.dumps(np.arange(5), 2)
        new = written.replace(b"numpy.core.multiarray", b"numpy._core.multiarray")
        old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        assert old != new
        assert load(old, "x").tolist() == load(new, "x").tolist() == [0, 1, 2, 3, 4]

    def test_column_major_arrays_and_numbers_of_numpy_are_read(self) -> None:
        array = np.asfortranarray(np.arange(6).reshape(2, 3))
        value = {"array": array, "number": np.float64(2.5)}
        found = load(pickle.dumps(value, 2), "x")
        assert found["array"].tolist() == array.tolist()
        assert found["number"] == 2.5

    def test_a_python_2_batch_of_cifar10_is_read(self) -> None:
        batch = load(a_python_2_batch(3, [6, 9, 1]), "data_batch_1")
        assert batch[b"labels"] == [6, 9, 1]
        assert batch[b"data"].shape == (3, 3072)
        assert batch[b"data"].dtype == np.uint8
        assert batch[b"data"][2, 255] == 255
        assert batch[b"batch_label"] == b"training batch 1 of 5"


class TestHostility:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_a_system_command_is_refused_and_not_run(self, tmp_path: Path, protocol: int) -> None:
        trace = tmp_path / "trace"
        hostile = pickle.dumps([Calls(os.system, f"touch {trace}")], protocol)
        with pytest.raises(DataError, match=r"data_batch_1 .*forbidden global (posix|nt)\.system"):
            load(hostile, "data_batch_1")
        assert not trace.exists()

    @pytest.mark.parametrize(
        ("function", "argument"),
        [
            (builtins.eval, "1"),
            (builtins.exec, "1"),
            (builtins.getattr, "1"),
            (builtins.__import__, "os"),
            (np.load, "file"),
            (np.fromfile, "file"),
            (np.memmap, "file"),
            (np.frombuffer, b"1"),
        ],
    )
    def test_any_other_function_is_refused_by_name(self, function: Any, argument: Any) -> None:
        for protocol in (0, 2, 4):
            with pytest.raises(DataError, match=f"forbidden global .*{function.__name__}"):
                load(pickle.dumps(Calls(function, argument), protocol), "x")

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_object_arrays_are_refused(self, protocol: int) -> None:
        with pytest.raises(DataError, match="forbidden"):
            load(pickle.dumps(np.array([{}, []], dtype=object), min(protocol, 4)), "x")

    @pytest.mark.parametrize("code", ["O", "O8", "V8", "M8[s]", "f4,f4", "(2,)u1"])
    def test_dtypes_that_are_not_plain_are_refused(self, code: str) -> None:
        with pytest.raises(DataError, match="forbidden dtype"):
            load(pickle.dumps(Calls(np.dtype, code), 2), "x")

    @pytest.mark.parametrize("code", [7, None, [("a", "O")]])
    def test_dtypes_that_are_no_name_are_refused(self, code: Any) -> None:
        with pytest.raises(DataError, match="forbidden dtype"):
            load(pickle.dumps(Calls(np.dtype, code), 2), "x")

    def test_an_array_cannot_claim_more_than_its_bytes(self) -> None:
        written = a_python_2_batch(3, [1, 2, 3])
        grown = written.replace(b"J" + struct.pack("<i", 3), b"J" + struct.pack("<i", 2**30))
        with pytest.raises(DataError, match="does not match its 9216 bytes"):
            load(grown, "x")

    def test_numpys_array_type_cannot_be_called(self) -> None:
        with pytest.raises(DataError, match=r"forbidden call of numpy\.ndarray"):
            load(b"cnumpy\nndarray\n(J\xff\xff\xff\x7ftR.", "x")

    def test_the_encoder_makes_bytes_and_nothing_else(self) -> None:
        import _codecs

        assert load(pickle.dumps(Calls(_codecs.encode, "é", "latin1"), 2), "x") == b"\xe9"
        with pytest.raises(DataError, match=r"forbidden call of _codecs\.encode"):
            load(pickle.dumps(Calls(_codecs.encode, "x", "rot13"), 2), "x")

    def test_an_allowed_function_cannot_be_altered(self) -> None:
        state = b"(N}U\x0c__defaults__)t"
        with pytest.raises(DataError, match="forbidden change"):
            load(b"\x80\x02c_codecs\nencode\n" + state + b"b.", "x")

    @pytest.mark.parametrize(
        ("bomb", "reason"),
        [
            (b"\x80\x02Nr\xff\xff\xff\x7f.", "memo number"),
            (b"Np99999999999\n.", "memo number"),
            (b"(iposix\nsystem\n.", "instruction INST"),
            (b"\x80\x02cnumpy\ndtype\n)\x81.", "instruction NEWOBJ"),
            (b"Pabc\n.", "instruction PERSID"),
            (b"\x80\x02\x82\x01.", "instruction EXT1"),
            (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.", "not a readable pickle"),
            (b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.", "not a readable pickle"),
            (b"T\xff\xff\xff\x7fx.", "not a readable pickle"),
            (b"(" * 100_000 + b".", "not a readable pickle"),
            (b"0" * 1000 + b".", "not a readable pickle"),
            (b"]]" + b"a" * 10 + b".", "not a readable pickle"),
            (b"", "not a readable pickle"),
            (b"N", "not a readable pickle"),
        ],
    )
    def test_bombs_and_broken_pickles_are_errors_of_ours(self, bomb: bytes, reason: str) -> None:
        with pytest.raises(DataError, match=reason):
            load(bomb, "x")

    def test_deep_nesting_does_no_harm(self) -> None:
        deep = load(b"]" * 50_000 + b"a" * 49_999 + b".", "x")
        assert isinstance(deep, list)

    @settings(deadline=None)
    @given(st.binary(max_size=200))
    def test_no_bytes_at_all_lead_to_any_other_error(self, content: bytes) -> None:
        with contextlib.suppress(DataError):
            load(content, "x")

    @settings(deadline=None)
    @given(st.data())
    def test_no_change_to_a_real_batch_leads_to_any_other_error(self, data: st.DataObject) -> None:
        written = bytearray(a_python_2_batch(1, [4]))
        # The head and the tail: in between lie pixels.
        places = st.integers(0, 130) | st.integers(len(written) - 90, len(written) - 1)
        for place in data.draw(st.lists(places, min_size=1, max_size=4)):
            written[place] = data.draw(st.integers(0, 255))
        with contextlib.suppress(DataError):
            load(bytes(written), "x")

"""Read a pickle that can hold data and nothing else.

A pickle is a program that may call any function. CIFAR-10's python files are pickles of numpy
arrays, lists and strings, and only those are allowed here. The functions that a pickled array needs
are replaced by restricted ones that make a plain array; any other global raises an error. All
instructions are checked before any is executed, because a few bytes can make the unpickler allocate
gigabytes.
"""

from __future__ import annotations

import codecs
import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from stepscope.errors import DataError

_PLAIN_KINDS = frozenset("biufcSU")  # booleans, numbers, byte strings and strings: no objects
_FORBIDDEN_OPCODES = frozenset(
    {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}
    | {"PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
)
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")


def load(content: bytes, where: str) -> Any:
    """Unpickle `content` into arrays, lists, tuples, dicts, bytes, strings and numbers.

    Python 2 strings become bytes, arrays a plain subclass of ndarray. `where` names the file in
    errors. Any invalid pickle raises a DataError.
    """
    try:
        _read_through(content)
        return _Unpickler(content).load()
    except DataError as error:
        raise DataError(f"{where} is not a safe pickle: {error}") from None
    except Exception as error:  # a broken pickle may fail in any way: pickle's documentation
        raise DataError(
            f"{where} is not a readable pickle ({type(error).__name__}: {error})"
        ) from error


def _read_through(content: bytes) -> None:
    """Raise for instructions that create objects, or memo numbers larger than the pickle."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in _FORBIDDEN_OPCODES:
            raise DataError(f"forbidden instruction {opcode.name}")
        # The memo is an array as long as its highest number.
        if "PUT" in opcode.name and isinstance(argument, int) and argument > len(content):
            raise DataError(f"forbidden memo number {argument}")


class _Dtype:
    """Stands in for numpy.dtype while a pickle is read: plain kinds only."""

    def __init__(self, code: Any, *flags: Any) -> None:
        name = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(name, str):
            raise DataError(f"forbidden dtype {type(code).__name__}")
        found = np.dtype(name)
        if found.kind not in _PLAIN_KINDS or found.fields or found.subdtype or found.hasobject:
            raise DataError(f"forbidden dtype {name!r}; only plain numbers and strings are read")
        self.plain = found

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        order = order.decode("latin1") if isinstance(order, bytes) else order
        if order not in ("<", ">", "|", "="):
            raise DataError(f"forbidden byte order {order!r}")
        if any(state[2:5]):
            raise DataError("forbidden dtype with fields or a shape of its own")
        if order != "|":
            self.plain = np.dtype(order + self.plain.str[1:])


class _Array(np.ndarray):
    """An array whose state may only be bytes of a plain dtype."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise DataError("forbidden array; only plain numbers and strings are read")
        if not isinstance(shape, tuple) or not all(
            type(side) is int and side >= 0 for side in shape
        ):
            raise DataError("forbidden array shape")
        if math.prod(shape) * dtype.plain.itemsize != len(content):
            raise DataError(f"array of shape {shape} does not match its {len(content)} bytes")
        super().__setstate__((1, shape, dtype.plain, bool(column_major), content))  # type: ignore[arg-type]


def _reconstruct(*arguments: Any) -> np.ndarray:
    """Return an empty array, as numpy's function does; its state is set later."""
    begun: np.ndarray = np.ndarray.__new__(_Array, (0,), dtype=np.uint8)
    return begun


def _array_type(*arguments: Any) -> None:
    """Replace numpy.ndarray, which a pickle only passes to `_reconstruct`."""
    raise DataError("forbidden call of numpy.ndarray")


def _scalar(dtype: Any, content: Any) -> Any:
    """Return a numpy scalar from its bytes."""
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
        raise DataError("forbidden numpy scalar")
    if len(content) != dtype.plain.itemsize:
        raise DataError(f"numpy scalar does not match its {len(content)} bytes")
    return np.frombuffer(content, dtype=dtype.plain)[0]


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Return bytes from text, as protocol 2 of Python 3 encodes them."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("forbidden call of _codecs.encode")
    return codecs.encode(text, "latin1")


def _empty_bytes() -> bytes:
    """Return empty bytes, which old protocols of Python 3 encode as a call of `bytes`."""
    return b""


class _StandIn:
    """A function that a pickle can call but not modify."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise DataError("forbidden change of a function")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _array_type,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty_bytes,
    **{(module, "_reconstruct"): _reconstruct for module in _ARRAY_MODULES},
    **{(module, "scalar"): _scalar for module in _ARRAY_MODULES},
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of an allowed global; raise for any other."""
        try:
            return _StandIn(_ALLOWED[module, name])
        except KeyError:
            raise DataError(f"forbidden global {module}.{name}") from None

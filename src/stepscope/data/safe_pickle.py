"""Read CIFAR-10's python files, which are pickles, without running them.

Its instructions are only listed: the pixels are the longest string after `data`, the labels the
whole numbers after `labels`. The caller checks the md5 of the result.
"""

from __future__ import annotations

import pickletools

from stepscope.errors import DataError

_KEYS = frozenset({b"data", b"labels", b"batch_label", b"filenames"})
_INTEGERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"})


def read_batch(content: bytes, where: str) -> tuple[bytes, list[int]]:
    """Return the pixels and the labels of a pickled batch; `where` names the file in errors."""
    pixels = b""
    labels: list[int] = []
    found: set[bytes] = set()
    key = b""
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if isinstance(argument, str):
                argument = argument.encode("latin1", "replace")
            if isinstance(argument, bytes) and argument in _KEYS:
                key = argument
                found.add(key)
            elif isinstance(argument, bytes) and key == b"data":
                pixels = max(pixels, argument, key=len)
            elif isinstance(argument, int) and key == b"labels" and opcode.name in _INTEGERS:
                labels.append(argument)
    except Exception as error:  # a broken pickle may fail in any way: pickle's documentation
        raise DataError(
            f"{where} is not a readable pickle ({type(error).__name__}: {error})"
        ) from error
    if not {b"data", b"labels"} <= found:
        raise DataError(f"{where} has no b'data' and b'labels'")
    return pixels, labels

"""Texts with labels in tab-separated files: `train.tsv`, `dev.tsv`, `test.tsv`.

The first line names the columns, `sentence` and `label` among them. Nothing is quoted: a text is
all that stands between two tabs. Texts are kept in one block of bytes: a list of strings would be
copied into every forked worker, page by page, as their reference counts change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepscope.data.listing import shown
from stepscope.errors import DataError

SENTENCE, LABEL = "sentence", "label"
# A network has a score for every number up to the largest label: a mistyped one must not fill the
# memory.
MOST_CLASSES = 10_000

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts and their labels, by index."""

    labels: Integers
    _block: bytes
    _ends: Integers

    def __len__(self) -> int:
        return len(self.labels)

    def text(self, index: int) -> str:
        """Return one text."""
        start = int(self._ends[index - 1]) if index else 0
        return self._block[start : int(self._ends[index])].decode()

    def first(self, samples: int) -> Texts:
        """Take the first so many texts."""
        return Texts(self.labels[:samples], self._block, self._ends[:samples])

    def size_bytes(self) -> int:
        """Return what the texts and their labels take in memory."""
        in_block = int(self._ends[-1]) if len(self) else 0
        return in_block + self._ends.nbytes + self.labels.nbytes


def read_texts(file: Path) -> Texts:
    """Read a file of texts; one that has not changed is read once.

    Raises:
        DataError: it cannot be read, or is no table of texts and labels; names the line.
    """
    try:
        state = file.stat()
    except OSError as error:
        raise DataError(f"cannot read {shown(file)}: {error.strerror}.") from error
    return _read(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read(file: Path, changed_ns: int, size_bytes: int) -> Texts:
    header, *lines = _lines(file)
    names = header.split("\t")
    missing = [f"{name!r}" for name in (SENTENCE, LABEL) if name not in names]
    if missing:
        found = ", ".join(map(repr, names)) if header else "an empty one"
        raise DataError(
            f"{shown(file)}: wanted a first line that names the columns {SENTENCE!r} and "
            f"{LABEL!r}, with a tab between them; found {found}. Add {' and '.join(missing)}."
        )
    sentence, label = names.index(SENTENCE), names.index(LABEL)
    texts: list[bytes] = []
    labels: list[int] = []
    for number, line in enumerate(lines, 2):
        if not line:  # the last line ends like the others, and people put empty ones between
            continue
        values = line.split("\t")
        if len(values) != len(names):
            raise DataError(
                f"{shown(file)}, line {number:,}: wanted {len(names)} values with tabs between "
                f"them, as the first line names, found {len(values)}. Mend or remove the line."
            )
        texts.append(values[sentence].encode())
        labels.append(_label(values[label], file, number))
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return Texts(np.array(labels, np.int64), b"".join(texts), ends)


def _lines(file: Path) -> list[str]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {shown(file)}: {error.strerror}.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{shown(file)}, line {line:,}: wanted text in UTF-8, found the byte "
            f"0x{content[error.start]:02x}. Convert it, for instance with `iconv -t UTF-8`."
        ) from error
    # Not `splitlines`, which also splits at characters that stand inside of texts.
    return text.replace("\r\n", "\n").split("\n")


def _label(value: str, file: Path, number: int) -> int:
    whole = value.isascii() and value.isdecimal()
    if not whole or len(value) > len(str(MOST_CLASSES)) or int(value) >= MOST_CLASSES:
        raise DataError(
            f"{shown(file)}, line {number:,}: wanted a label that is a whole number from 0 to "
            f"{MOST_CLASSES - 1:,}, found {value!r}. Number the classes from 0."
        )
    return int(value)

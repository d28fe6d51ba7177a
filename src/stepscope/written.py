"""Files that a person wrote: settings, the design of an accelerator."""

from __future__ import annotations

from pathlib import Path

# Far more than anybody writes. What has no end, `/dev/zero`, would take all memory.
_MOST_BYTES = 16 * 2**20


def read_written(file: Path) -> str:
    """Read a text file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text, or larger than anything that a person writes.
    """
    with file.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES // 2**20} MiB")
    return content.decode("utf-8")

"""Files: bounded reads, atomic writes, and the user's cache and state folders.

Standard library only. `shutil` and `tempfile` are imported when something is written: commands that
only read start faster without them.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.errors import DISK_FULL_ERRNOS, RequestError, StepscopeError, disk_full

_DEEP_KEY = re.compile(r"(?:\.[^.,=\n{}\[\]]*){50}")
# Larger than any file written by hand. An endless file such as `/dev/zero` would fill the memory.
_MOST_BYTES = 16 * 2**20

CACHE_VARIABLE = "XDG_CACHE_HOME"
STATE_VARIABLE = "XDG_STATE_HOME"


def read_bounded_text(file: Path) -> str:
    """Return the content of a text file written by hand, such as settings.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not UTF-8 text, or is larger than 16 MiB.
    """
    with file.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES // 2**20} MiB")
    return content.decode("utf-8")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises:
        ValueError: it is not TOML, or its tables are nested too deeply.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    # The parser takes the square of the depth of a dotted key: minutes for a file of 100 KB.
    if _DEEP_KEY.search(text):
        raise ValueError("its tables are nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or it is nested too deeply.
    """
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_OTHER_DATA_DIR = "Choose a writable folder with --data-dir DIR."


def cannot_write(error: OSError, what: str, advice: str = _OTHER_DATA_DIR) -> StepscopeError:
    """Return the error to raise when a file, by default of the data folder, cannot be written."""
    if error.errno in DISK_FULL_ERRNOS:
        return disk_full(error, what)
    return RequestError(f"cannot write {what}: {error.strerror or error}. {advice}".rstrip())


def replace_file(
    path: Path,
    content: Iterable[bytes],
    move: Callable[[Path, Path], object] = Path.replace,
    *,
    make_folder: bool = True,
) -> None:
    """Write the chunks of `content` to a temporary file, then move it to `path`."""
    import tempfile

    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            for chunk in content:
                stream.write(chunk)
        part.chmod(0o666 & ~_umask())
        move(part, path)
    finally:
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a power cut."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems do not sync folders
            raise
    finally:
        os.close(file)


def sync_and_move(part: Path, target: Path) -> None:
    """Rename a file so that a power cut leaves the old one or the new one, never an empty one."""
    sync(part)
    part.replace(target)
    sync(target.parent)


def write_atomically(
    path: Path, content: Iterable[bytes], move: Callable[[Path, Path], object] = Path.replace
) -> None:
    """Replace a file of the data folder, or with another `move` of a run folder."""
    try:
        replace_file(path, content, move)
    except OSError as error:
        raise cannot_write(error, str(path)) from error


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that is renamed to `target` if the block succeeds.

    If another process creates `target` first, that folder stays.
    """
    import shutil
    import tempfile

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(
            tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        )
    except OSError as error:
        raise cannot_write(error, str(target)) from error
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    except OSError as error:
        raise cannot_write(error, str(target)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cache_folder() -> Path | None:
    """Return the folder for files that can be recreated; None for a user without a home."""
    return _folder(CACHE_VARIABLE, "Library/Caches" if sys.platform == "darwin" else ".cache")


def state_folder() -> Path | None:
    """Return the folder for files that must persist; None for a user without a home."""
    return _folder(STATE_VARIABLE, ".local/state")


def is_chosen(variable: str) -> bool:
    """Return whether the user has set a folder with this environment variable."""
    return bool(os.environ.get(variable))


def _folder(variable: str, in_home: str) -> Path | None:
    try:
        parent = os.environ.get(variable) or Path.home() / in_home
    except RuntimeError:  # a user without a home, as in some containers
        return None
    return Path(parent) / "stepscope"


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

"""What a machine was before it was prepared: a file, until all of it is put back.

It is there before anything is set and gone when everything is back: so who was killed in between
can still put it back, and nobody takes a prepared state for the one before.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import MachineError, RequestError
from stepscope.hardware.knobs import KNOBS, State
from stepscope.hardware.power_mode import STATUS
from stepscope.user_folders import STATE_VARIABLE, is_chosen, state_folder

PUT_BACK = "stepscope doctor --restore"

_NAME = "machine-before.json"


def kept_states(root: Path) -> list[tuple[str, State]]:
    """Return what was before a preparation that has not been put back, in the order of setting.

    Raises:
        RequestError: the file cannot be read, or is of another tree.
    """
    file = kept_file(root)
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        of, states = kept["root"], [(str(name), dict(state)) for name, state in kept["states"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"{file}: wanted what was before a preparation, found something else ({error}). "
            "Set the machine by hand, then remove the file."
        ) from error
    if of != str(root):
        raise RequestError(f"{file} is of the tree {of}, and this is {root}.")
    for name, state in states:
        # Whoever puts it back is mostly root: nothing else is written than what is ours to set.
        if name not in KNOBS or not all(_may_be_set(path, text) for path, text in state.items()):
            raise RequestError(
                f"{file}: {name} is nothing that stepscope sets. Set the machine by hand, then "
                "remove the file."
            )
    return states


def _may_be_set(path: object, text: object) -> bool:
    if not isinstance(path, str) or not isinstance(text, str):
        return False
    return path == STATUS or (path.startswith("sys/") and ".." not in Path(path).parts)


def is_prepared(root: Path) -> bool:
    """Say whether something is set that has not been put back."""
    return os.access(kept_file(root), os.F_OK)


def kept_file(root: Path) -> Path:
    """Return where what was is kept; as long as nothing is, where it would be."""
    places = _places(root)
    return next((file for file in places if os.access(file, os.F_OK)), places[0])


def _places(root: Path) -> list[Path]:
    """List where what was may be kept, the place to keep it first.

    Root keeps it where everybody looks: who prepares by `sudo` asks later without it.
    """
    of_machine, folder = root / "var/lib/stepscope" / _NAME, state_folder()
    if folder is None:
        return [of_machine]
    own = folder / _NAME
    own_first = is_chosen(STATE_VARIABLE) or os.geteuid() != 0
    return [own, of_machine] if own_first else [of_machine, own]


def keep(states: Mapping[str, State], root: Path) -> None:
    """Keep what is now, in the order of setting.

    Raises:
        MachineError: it cannot be kept, or an earlier preparation was never put back.
        RequestError: there is a file that cannot be read.
    """
    file = kept_file(root)
    in_use = MachineError(
        f"an earlier preparation has not been put back ({file}), or another one is going on. "
        f"Put it back first: {PUT_BACK}"
    )
    if kept_states(root):
        raise in_use
    try:
        # Of two that begin at once one makes the link, and the other fails.
        _write(states, file, root, os.link)
    except FileExistsError as error:
        raise in_use from error


def rewrite(states: Mapping[str, State], file: Path, root: Path) -> None:
    """Put other states in the place of those that a file keeps.

    Raises:
        MachineError: it cannot be written.
    """
    _write(states, file, root, Path.replace)


def _write(
    states: Mapping[str, State], file: Path, root: Path, move: Callable[[Path, Path], object]
) -> None:
    """Write what was beside its file, for everybody to read, and move all of it there at once."""
    beside = None
    try:
        if not os.access(file.parent, os.F_OK):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.parent.chmod(0o755)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, suffix=".tmp", delete=False
        ) as writing:
            beside = Path(writing.name)
            writing.write(json.dumps({"root": str(root), "states": list(states.items())}))
        beside.chmod(0o644)
        move(beside, file)
    except FileExistsError:
        raise
    except OSError as error:
        raise MachineError(
            f"what was cannot be kept: {file}: {error.strerror}. Make its folder writable, or "
            f"name another one by {STATE_VARIABLE}."
        ) from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)

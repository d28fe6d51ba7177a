"""Prepare a machine for a fair measurement, and restore it.

The previous state is saved in a file before anything is set, until all of it is restored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from stepscope.errors import MachineError, RequestError
from stepscope.files import STATE_VARIABLE, is_chosen, replace_file, state_folder
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.cpu_clock import FIXED, governors
from stepscope.hardware.jetson import STATUS, protocol_mode
from stepscope.hardware.machine_knobs import KNOBS, State, not_yet, state_before, write
from stepscope.hardware.thermal import MAX
from stepscope.records.types import MachineChange

RESTORE = "stepscope doctor --restore"

_NAME = "machine-before.json"


def kept_states(root: Path) -> list[tuple[str, State]]:
    """Return the saved states of a preparation that was not restored, in the order of setting."""
    file = kept_file(root)
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        of, states = kept["root"], [(str(name), dict(state)) for name, state in kept["states"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"{file}: wanted the settings saved by --apply, found something else ({error}). "
            "Restore the settings by hand, then remove the file."
        ) from error
    if of != str(root):
        raise RequestError(f"{file} was saved for {of}, and this is {root}.")
    for name, state in states:
        # Restoring mostly runs as root: write nothing but what a knob sets.
        if name not in KNOBS or not all(_may_be_set(path, text) for path, text in state.items()):
            raise RequestError(
                f"{file}: {name} is not a setting that stepscope changes. Restore the settings by "
                "hand, then remove the file."
            )
    return states


def _may_be_set(path: object, text: object) -> bool:
    if not isinstance(path, str) or not isinstance(text, str):
        return False
    return path == STATUS or (path.startswith("sys/") and ".." not in Path(path).parts)


def is_prepared(root: Path) -> bool:
    """Return whether a preparation has not been restored."""
    return os.access(kept_file(root), os.F_OK)


def kept_file(root: Path) -> Path:
    """Return the file of the saved state, or where it would be saved."""
    places = _places(root)
    return next((file for file in places if os.access(file, os.F_OK)), places[0])


def _places(root: Path) -> list[Path]:
    """List the possible files of the saved state, the preferred one first.

    Root saves it where every user looks: `sudo` may be used to prepare but not to ask later.
    """
    of_machine, folder = root / "var/lib/stepscope" / _NAME, state_folder()
    if folder is None:
        return [of_machine]
    own = folder / _NAME
    own_first = is_chosen(STATE_VARIABLE) or os.geteuid() != 0
    return [own, of_machine] if own_first else [of_machine, own]


def keep(states: Mapping[str, State], root: Path) -> None:
    """Save the current states, in the order of setting."""
    file = kept_file(root)
    try:
        # Of two concurrent preparations, one creates the link and the other fails.
        _write(states, file, root, os.link)
    except FileExistsError as error:
        raise MachineError(
            f"settings of an earlier --apply or --prepare are not restored yet ({file}). "
            f"Restore them first: {RESTORE}"
        ) from error


def _write(
    states: Mapping[str, State], file: Path, root: Path, move: Callable[[Path, Path], object]
) -> None:
    def publish(part: Path, target: Path) -> None:
        part.chmod(0o644)  # whatever the umask of root: every user may ask what was set
        move(part, target)

    try:
        if not os.access(file.parent, os.F_OK):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.parent.chmod(0o755)
        content = json.dumps({"root": str(root), "states": list(states.items())})
        replace_file(file, [content.encode()], publish)
    except FileExistsError:
        raise
    except OSError as error:
        raise MachineError(
            f"cannot save the current settings in {file}: {error.strerror}. Make its folder "
            f"writable, or choose another one with {STATE_VARIABLE}."
        ) from error


_GOVERNOR = "performance"


def protocol(root: Path) -> dict[str, str]:
    """Return the conditions of the edge protocol that this machine has."""
    asked = {
        "power_mode": protocol_mode(root),
        "governor": _GOVERNOR if _GOVERNOR in governors(root) else None,
        "clocks": FIXED,
        "memory_clock": FIXED,
        "fan": MAX,
    }
    return {
        name: value
        for name, value in asked.items()
        if value is not None and CONDITIONS[name](root).value is not None
    }


def changes(wanted: Mapping[str, str], root: Path) -> list[MachineChange]:
    """List the changes that the wanted conditions need, in the order of setting."""
    found: list[MachineChange] = []
    for name, knob in KNOBS.items():
        if name not in wanted:
            continue
        now = CONDITIONS[name](root)
        if now.value is None:
            raise MachineError(f"{name}: wanted {wanted[name]}, found {now.reason}.")
        aim = knob(root, wanted[name])
        if not state_before(name, aim, root).items() <= aim.items():
            found.append({"name": name, "before": now.value, "after": wanted[name]})
    return found


def apply(planned: list[MachineChange], root: Path) -> None:
    """Make the planned changes; if one fails, restore the others."""
    if not planned:
        return
    wanted = {each["name"]: each["after"] for each in planned}
    kept = {
        name: state_before(name, KNOBS[name](root, value), root) for name, value in wanted.items()
    }
    keep(kept, root)
    try:
        for name, value in wanted.items():
            # Only now: a new power mode changes the highest clock and the online CPUs.
            aim = KNOBS[name](root, value)
            now = state_before(name, aim, root)
            if now.keys() - kept[name].keys():
                kept[name] = now | kept[name]
                _write(kept, kept_file(root), root, Path.replace)
            write(aim, root)
    except BaseException:
        restore(root)
        raise


def restore(root: Path) -> list[str]:
    """Restore the state before a preparation; return the names of the restored conditions.

    Failures are tried a second time: the CPUs of a condition may only be online once the power mode
    is restored. A condition that cannot be restored stays saved.
    """
    file, kept = kept_file(root), dict(kept_states(root))
    first = _restore(kept, list(reversed(kept)), root)
    reasons = _restore(kept, list(first), root)
    if reasons:
        left = {name: state for name, state in kept.items() if name in reasons}
        if left != kept:
            _write(left, file, root, Path.replace)
        why = " ".join(reasons.values())
        raise MachineError(f"not all settings could be restored: {why} Then: {RESTORE}")
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(
            f"all settings are restored, but {file} cannot be removed: {error.strerror}. Remove it."
        ) from error
    return [name for name in reversed(kept) if name not in first] + list(first)


def _restore(kept: Mapping[str, State], names: list[str], root: Path) -> dict[str, str]:
    """Restore the named states; return the reasons by name for those that failed."""
    reasons = {}
    for name in names:
        try:
            write(not_yet(kept[name], root), root)
        except MachineError as error:
            reasons[name] = str(error)
    return reasons

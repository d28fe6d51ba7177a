"""Prepare a machine for a fair measurement, and put back what was.

What was is kept before anything is set (`kept_state`), until all of it is back.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.errors import MachineError, RequestError
from stepscope.files import STATE_VARIABLE, is_chosen, state_folder
from stepscope.hardware import cpu_clock, jetson, thermal
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.cpu_clock import FIXED, OFF, ON, governors
from stepscope.hardware.jetson import STATUS, protocol_mode
from stepscope.hardware.procfs import read_text
from stepscope.hardware.thermal import MAX

# --- What of a machine can be set, and how: each condition that a knob brings about


State = dict[str, str]  # what files below the root say, by their path from there

_NVPMODEL = "usr/sbin/nvpmodel"
_WITHIN_S = 60


@dataclass(frozen=True)
class Knob:
    """One condition that can be set.

    `state` returns what is to be put back later, `wanted` what files must say for a value; both
    raise MachineError where that cannot be.
    """

    name: str
    state: Callable[[Path], State]
    wanted: Callable[[Path, str], State]


def write(state: State, root: Path) -> None:
    """Set files below the root.

    Raises:
        MachineError: one of them cannot be written; it says what to do as root.
    """
    for path, text in state.items():
        if path == jetson.STATUS:
            _set_power_mode(text, root)
            continue
        try:
            (root / path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise MachineError(
                f"cannot set {root / path} to {text!r}: {error.strerror}. "
                f"As root: echo {text} | sudo tee {root / path}"
            ) from error


def not_yet(state: State, root: Path) -> State:
    """Return what of a state the files do not say already."""
    return {path: text for path, text in state.items() if _text(path, root) != text}


def _text(path: str, root: Path) -> str | None:
    if path == jetson.STATUS:
        number = jetson.mode_number(root).value
        return None if number is None else _status(number)
    return read_text(root / path).value


def _set_power_mode(status: str, root: Path) -> None:
    number = int(status.rpartition(":")[2])
    program = root / _NVPMODEL
    command = f"sudo nvpmodel -m {number}"
    try:
        # Some modes want a restart, about which it asks.
        done = subprocess.run(
            [program, "-m", str(number)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(
            f"cannot set power mode {number}: {program}: {error}. As root: {command}"
        ) from error
    found = jetson.mode_number(root)
    if done.returncode != 0 or found.value != number:
        said = " ".join(f"{done.stdout} {done.stderr}".split())[-300:]
        raise MachineError(
            f"cannot set power mode {number}: nvpmodel ended with {done.returncode} and the mode "
            f"is {found.value}: {said or 'it said nothing'}. As root: {command}"
        )


def _texts(name: str, files: Callable[[Path], list[Path]], root: Path) -> State:
    found = {}
    for file in files(root):
        said = read_text(file)
        if said.value is None:
            raise MachineError(f"{name} is not set, for it could not be put back: {said.reason}.")
        found[_from(root, file)] = said.value
    return found


def _power_mode_state(root: Path) -> State:
    number = jetson.mode_number(root)
    if number.value is None:
        raise MachineError(f"power_mode: {number.reason}.")
    return {jetson.STATUS: _status(number.value)}


def _status(number: int) -> str:
    return f"pmode:{number:04d}"


def _wanted_power_mode(root: Path, value: str) -> State:
    number = jetson.number_of(value, root)
    if number is None:
        known = ", ".join(jetson.power_modes(root).values()) or "none at all"
        raise MachineError(
            f"power_mode: wanted {value}, and this machine has {known}. Name one of them."
        )
    return {jetson.STATUS: _status(number)}


def _governor_files(root: Path) -> list[Path]:
    return [policy / "scaling_governor" for policy in cpu_clock.policies(root)]


def _wanted_governor(root: Path, value: str) -> State:
    known = cpu_clock.governors(root)
    if value not in known:
        has = ", ".join(known) or "none at all: it does not scale its clocks"
        raise MachineError(f"governor: wanted {value}, and this machine has {has}.")
    return {_from(root, file): value for file in _governor_files(root)}


def _wanted_clocks(root: Path, value: str) -> State:
    _check_can_be("clocks", value, (FIXED,))
    highest = {low: read_text(high).value for low, high in cpu_clock.clock_ranges(root)}
    return {_from(root, low): text for low, text in highest.items() if text is not None}


def _memory_clock_kept(root: Path) -> list[Path]:
    files = cpu_clock.memory_clock_files(root)
    return [] if files is None else [files[0]]


def _wanted_memory_clock(root: Path, value: str) -> State:
    _check_can_be("memory_clock", value, (FIXED,))
    files = cpu_clock.memory_clock_files(root)
    if files is None:
        raise MachineError(f"memory_clock: {cpu_clock.memory_clock(root).reason}.")
    hold, rate, highest = files
    fastest = read_text(highest)
    if fastest.value is None:
        raise MachineError(f"memory_clock: {fastest.reason}.")
    return {_from(root, hold): "1", _from(root, rate): fastest.value}


def _fan_files(root: Path) -> list[Path]:
    return [
        file for file in (thermal.control_file(root), thermal.speed_file(root)) if file is not None
    ]


def _wanted_fan(root: Path, value: str) -> State:
    speed = thermal.speed_file(root)
    if speed is None:
        raise MachineError(f"fan: {thermal.fan(root).reason}.")
    known = value.isascii() and value.isdecimal() and int(value) <= thermal.FASTEST
    if value != thermal.MAX and not known:
        raise MachineError(f"fan: wanted {value}; it can be set to max, or 0 to {thermal.FASTEST}.")
    control = thermal.control_file(root)
    kernel_off = {} if control is None else {_from(root, control): "0"}
    return {
        **kernel_off,
        _from(root, speed): str(thermal.FASTEST) if value == thermal.MAX else value,
    }


def _turbo_files(root: Path) -> list[Path]:
    found = cpu_clock.turbo_file(root)
    return [] if found is None else [found[0]]


def _wanted_turbo(root: Path, value: str) -> State:
    _check_can_be("turbo", value, (ON, OFF))
    found = cpu_clock.turbo_file(root)
    if found is None:
        raise MachineError(f"turbo: {cpu_clock.turbo(root).reason}.")
    file, off = found
    on = "0" if off == "1" else "1"
    return {_from(root, file): off if value == OFF else on}


def _check_can_be(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise MachineError(f"{name}: wanted {value}; it can be set to {' or '.join(known)} only.")


def _from(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()


def _lowest_clocks(root: Path) -> list[Path]:
    return [low for low, _ in cpu_clock.clock_ranges(root)]


def _of_files(
    name: str, files: Callable[[Path], list[Path]], wanted: Callable[[Path, str], State]
) -> Knob:
    return Knob(name, partial(_texts, name, files), wanted)


# In the order in which they are set, and put back in the other: a power mode bounds the clocks.
KNOBS = {
    knob.name: knob
    for knob in (
        Knob("power_mode", _power_mode_state, _wanted_power_mode),
        _of_files("governor", _governor_files, _wanted_governor),
        _of_files("turbo", _turbo_files, _wanted_turbo),
        _of_files("clocks", _lowest_clocks, _wanted_clocks),
        _of_files("memory_clock", _memory_clock_kept, _wanted_memory_clock),
        _of_files("fan", _fan_files, _wanted_fan),
    )
}


# --- What a machine was before it was prepared: a file, until all of it is put back


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


_GOVERNOR = "performance"


@dataclass(frozen=True)
class Change:
    """One condition that is to be set: what it is now, and what it shall be."""

    name: str
    before: str
    after: str


def protocol(root: Path) -> dict[str, str]:
    """Return what the edge protocol asks of this machine, of what it has.

    A fixed power mode, no scaling of clocks, the fan at its fastest.
    """
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


def changes(wanted: Mapping[str, str], root: Path) -> list[Change]:
    """List what must be set for wanted conditions, in the order of setting.

    Raises:
        MachineError: this machine does not have one of them, or cannot have that value.
    """
    found = []
    for name, knob in KNOBS.items():
        if name not in wanted:
            continue
        now = CONDITIONS[name](root)
        if now.value is None:
            raise MachineError(f"{name}: wanted {wanted[name]}, and {now.reason}.")
        aim, state = knob.wanted(root, wanted[name]), knob.state(root)
        if not_yet({path: text for path, text in aim.items() if path in state}, root):
            found.append(Change(name, now.value, wanted[name]))
    return found


def apply(planned: list[Change], root: Path) -> None:
    """Set what was planned; where one thing cannot be set, the others are put back.

    Raises:
        MachineError: it cannot be set, or an earlier preparation was never put back.
    """
    if not planned:
        return
    kept = {each.name: KNOBS[each.name].state(root) for each in planned}
    keep(kept, root)
    try:
        for change in planned:
            # Looked up only now: a new power mode has moved the highest clock, and brought CPUs.
            knob = KNOBS[change.name]
            now = knob.state(root)
            if now.keys() - kept[change.name].keys():
                kept[change.name] = now | kept[change.name]
                rewrite(kept, kept_file(root), root)
            write(knob.wanted(root, change.after), root)
    except BaseException:
        restore(root)
        raise


def restore(root: Path) -> list[str]:
    """Put back what was before a preparation; return the names of what was put back.

    Everything is tried, and what fails is tried again: a power mode that is back may have brought
    the CPUs that it is of. What cannot be put back stays kept.

    Raises:
        MachineError: something cannot be put back.
        RequestError: the file with what was cannot be read.
    """
    file, kept = kept_file(root), dict(kept_states(root))
    first = _put_back(kept, list(reversed(kept)), root)
    reasons = _put_back(kept, list(first), root)
    if reasons:
        left = {name: state for name, state in kept.items() if name in reasons}
        if left != kept:
            rewrite(left, file, root)
        said = " ".join(reasons.values())
        raise MachineError(f"not everything could be put back: {said} Then: {PUT_BACK}")
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(
            f"everything is as it was, but {file} cannot be removed: {error.strerror}. Remove it."
        ) from error
    return [name for name in reversed(kept) if name not in first] + list(first)


def _put_back(kept: Mapping[str, State], names: list[str], root: Path) -> dict[str, str]:
    """Set what was of each name; return why not, by the names that it failed for."""
    reasons = {}
    for name in names:
        try:
            write(not_yet(kept[name], root), root)
        except MachineError as error:
            reasons[name] = str(error)
    return reasons

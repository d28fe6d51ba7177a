"""The machine settings that stepscope can change: one knob for each condition."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware import cpu_clock, jetson, thermal
from stepscope.hardware.cpu_clock import FIXED, OFF, ON
from stepscope.hardware.procfs import Reading, read_text

State = dict[str, str]  # contents of files below the root, by relative path

_NVPMODEL = "usr/sbin/nvpmodel"
_WITHIN_S = 60


@dataclass(frozen=True)
class Knob:
    """One condition that can be set.

    `files` lists the files whose content is saved and restored; `wanted` returns the content for a
    value, or raises MachineError if this machine cannot have it.
    """

    name: str
    files: Callable[[Path], list[Path]]
    wanted: Callable[[Path, str], State]

    def state(self, root: Path) -> State:
        """Return the current content of its files, to restore it later."""
        found = {}
        for file in self.files(root):
            current = _read(_relative(file, root), root)
            if current.value is None:
                raise MachineError(f"{self.name} could not be restored later: {current.reason}.")
            found[_relative(file, root)] = current.value
        return found


def write(state: State, root: Path) -> None:
    """Set files below the root."""
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
    """Return the part of a state that the files do not have yet."""
    return {path: text for path, text in state.items() if _read(path, root).value != text}


def _read(path: str, root: Path) -> Reading[str]:
    # Without a status file the mode is the default of nvpmodel's configuration.
    return (
        jetson.mode_number(root).map(_status) if path == jetson.STATUS else read_text(root / path)
    )


def _status(number: int) -> str:
    return f"pmode:{number:04d}"


def _set_power_mode(status: str, root: Path) -> None:
    number = int(status.rpartition(":")[2])
    program = root / _NVPMODEL
    command = f"sudo nvpmodel -m {number}"
    try:
        # Some modes need a restart, and nvpmodel asks for confirmation.
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
        printed = " ".join(f"{done.stdout} {done.stderr}".split())[-300:]
        raise MachineError(
            f"cannot set power mode {number}: nvpmodel ended with {done.returncode} and the mode "
            f"is {found.value}: {printed or 'no output'}. As root: {command}"
        )


def _wanted_power_mode(root: Path, value: str) -> State:
    number = jetson.number_of(value, root)
    if number is None:
        known = ", ".join(jetson.power_modes(root).values()) or "none"
        raise MachineError(f"power_mode: this machine has no mode {value}. Available: {known}.")
    return {jetson.STATUS: _status(number)}


def _governor_files(root: Path) -> list[Path]:
    return [policy / "scaling_governor" for policy in cpu_clock.policies(root)]


def _wanted_governor(root: Path, value: str) -> State:
    known = cpu_clock.governors(root)
    if value not in known:
        has = ", ".join(known) or "none"
        raise MachineError(f"governor: this machine has no governor {value}. Available: {has}.")
    return {_relative(file, root): value for file in _governor_files(root)}


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
    return {_relative(file, root): off if value == OFF else on}


def _lowest_clocks(root: Path) -> list[Path]:
    return [low for low, _ in cpu_clock.clock_ranges(root)]


def _wanted_clocks(root: Path, value: str) -> State:
    _check_can_be("clocks", value, (FIXED,))
    highest = {low: read_text(high).value for low, high in cpu_clock.clock_ranges(root)}
    return {_relative(low, root): text for low, text in highest.items() if text is not None}


def _memory_clock_files(root: Path) -> list[Path]:
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
    return {_relative(hold, root): "1", _relative(rate, root): fastest.value}


def _fan_files(root: Path) -> list[Path]:
    files = (thermal.control_file(root), thermal.speed_file(root))
    return [file for file in files if file is not None]


def _wanted_fan(root: Path, value: str) -> State:
    files = _fan_files(root)
    if thermal.speed_file(root) is None:
        raise MachineError(f"fan: {thermal.fan(root).reason}.")
    known = value.isascii() and value.isdecimal() and int(value) <= thermal.FASTEST
    if value != thermal.MAX and not known:
        raise MachineError(f"fan: wanted max, or 0 to {thermal.FASTEST}; found {value}.")
    *control, speed = [_relative(file, root) for file in files]
    kernel_off = dict.fromkeys(control, "0")
    return {**kernel_off, speed: str(thermal.FASTEST) if value == thermal.MAX else value}


def _check_can_be(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise MachineError(f"{name}: wanted {' or '.join(known)}, found {value}.")


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()


# In the order of setting, and restored in reverse: a power mode limits the clocks.
KNOBS = {
    knob.name: knob
    for knob in (
        Knob("power_mode", lambda root: [root / jetson.STATUS], _wanted_power_mode),
        Knob("governor", _governor_files, _wanted_governor),
        Knob("turbo", _turbo_files, _wanted_turbo),
        Knob("clocks", _lowest_clocks, _wanted_clocks),
        Knob("memory_clock", _memory_clock_files, _wanted_memory_clock),
        Knob("fan", _fan_files, _wanted_fan),
    )
}

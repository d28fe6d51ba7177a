"""The machine settings that stepscope can change: one knob for each condition.

A knob returns the contents of files that give its condition a value, or raises MachineError if this
machine cannot have that value.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware import cpu_clock, jetson, thermal
from stepscope.hardware.cpu_clock import FIXED, OFF, ON
from stepscope.hardware.procfs import Reading, read_text

State = dict[str, str]  # contents of files below the root, by relative path

_NVPMODEL = "usr/sbin/nvpmodel"
_WITHIN_S = 60
# The kernel sets these rates itself once the memory clock is no longer locked.
_NOT_RESTORED = {rate for _, rate, _ in cpu_clock.MEMORY_CLOCKS}


def state_before(name: str, wanted: State, root: Path) -> State:
    """Return the current content of the files that a knob sets, to restore it later."""
    found = {}
    for path in wanted:
        if path in _NOT_RESTORED:
            continue
        current = _read(path, root)
        if current.value is None:
            raise MachineError(f"{name} could not be restored later: {current.reason}.")
        found[path] = current.value
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


def _power_mode(root: Path, value: str) -> State:
    number = jetson.number_of(value, root)
    if number is None:
        raise _refused("power_mode", ", ".join(jetson.power_modes(root).values()), value)
    return {jetson.STATUS: _status(number)}


def _governor(root: Path, value: str) -> State:
    _check_can_be("governor", value, cpu_clock.governors(root))
    policies = cpu_clock.policies(root)
    return {_relative(policy / "scaling_governor", root): value for policy in policies}


def _turbo(root: Path, value: str) -> State:
    _check_can_be("turbo", value, (ON, OFF))
    found = cpu_clock.turbo_file(root)
    assert found is not None, "turbo is a condition of this machine"
    file, off = found
    on = "0" if off == "1" else "1"
    return {_relative(file, root): off if value == OFF else on}


def _clocks(root: Path, value: str) -> State:
    _check_can_be("clocks", value, (FIXED,))
    highest = {low: read_text(high).value for low, high in cpu_clock.clock_ranges(root)}
    return {_relative(low, root): text for low, text in highest.items() if text is not None}


def _memory_clock(root: Path, value: str) -> State:
    _check_can_be("memory_clock", value, (FIXED,))
    files = cpu_clock.memory_clock_files(root)
    assert files is not None, "the memory clock is a condition of this machine"
    hold, rate, highest = files
    fastest = read_text(highest)
    if fastest.value is None:
        raise MachineError(f"memory_clock: {fastest.reason}.")
    return {_relative(hold, root): "1", _relative(rate, root): fastest.value}


def _fan(root: Path, value: str) -> State:
    known = value.isascii() and value.isdecimal() and int(value) <= thermal.FASTEST
    if value != thermal.MAX and not known:
        raise _refused("fan", f"max, or 0 to {thermal.FASTEST}", value)
    control, speed = thermal.control_file(root), thermal.speed_file(root)
    assert speed is not None, "the fan is a condition of this machine"
    kernel_off = {} if control is None else {_relative(control, root): "0"}
    speed_text = str(thermal.FASTEST) if value == thermal.MAX else value
    return {**kernel_off, _relative(speed, root): speed_text}


def _check_can_be(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise _refused(name, ", ".join(known), value)


def _refused(name: str, known: str, value: str) -> MachineError:
    return MachineError(f"{name}: wanted {value}, but this machine offers {known or 'no choice'}.")


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()


# In the order of setting, and restored in reverse: a power mode limits the clocks.
KNOBS: Mapping[str, Callable[[Path, str], State]] = {
    "power_mode": _power_mode,
    "governor": _governor,
    "turbo": _turbo,
    "clocks": _clocks,
    "memory_clock": _memory_clock,
    "fan": _fan,
}

"""A board's fan: how fast it is told to turn, in the 0 to 255 of pulse-width modulation."""

from __future__ import annotations

from pathlib import Path

from stepscope.hardware.pseudo_files import Reading, is_there, matching, read_integer

FASTEST = 255
MAX = "max"
_OLD = "sys/devices/pwm-fan"  # kernels of L4T 32
_NEW = "sys/devices/platform/pwm-fan/hwmon"  # those after


def speed_file(root: Path) -> Path | None:
    """Return the file that sets the fan's speed."""
    candidates = [root / _OLD / "target_pwm", *matching(root / _NEW, "hwmon*/pwm1")]
    return next((file for file in candidates if is_there(file)), None)


def control_file(root: Path) -> Path | None:
    """Return the file by which the kernel is told to leave the fan alone, where there is one."""
    file = root / _OLD / "temp_control"
    return file if is_there(file) else None


def fan(root: Path) -> Reading[str]:
    """Say how fast the fan is told to turn: `max`, or a number up to 255."""
    file = speed_file(root)
    if file is None:
        return Reading(None, "this system shows no fan that can be told how fast to turn (pwm-fan)")
    speed = read_integer(file)
    if speed.value is None:
        return Reading(None, speed.reason)
    return Reading(MAX if speed.value >= FASTEST else str(speed.value))

"""Prepare a machine for a fair measurement, and put back what was.

What was is kept before anything is set (`kept_state`), until all of it is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.fan import MAX
from stepscope.hardware.frequency import FIXED, governors
from stepscope.hardware.kept_state import PUT_BACK, keep, kept_file, kept_states, rewrite
from stepscope.hardware.knobs import KNOBS, State, not_yet, write
from stepscope.hardware.power_mode import protocol_mode

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

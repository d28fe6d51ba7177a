"""Machine conditions of a run: checked before it starts, or set for it and restored after it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from stepscope.errors import Interrupted, MachineError, RequestError, nearest
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.jetson import number_of, power_modes
from stepscope.hardware.machine_knobs import KNOBS
from stepscope.hardware.machine_setup import apply, changes, protocol, restore
from stepscope.records.types import MachineChange
from stepscope.supervisor.signals import STOP_SIGNALS, handling


def parse_requirements(text: str | None) -> dict[str, str]:
    """Parse conditions such as `power_mode=MAXN,governor=performance`."""
    wanted: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if not value:
            raise RequestError(
                f"require: wanted NAME=VALUE such as governor=performance, found {part!r}."
            )
        name = name.replace("-", "_").lower()
        if name not in CONDITIONS:
            raise RequestError(f"require: unknown condition {name!r}.{nearest(name, CONDITIONS)}")
        if name in wanted:
            raise RequestError(f"require: {name} is named twice. Name it once.")
        wanted[name] = value
    if text is not None and not wanted:
        raise RequestError(
            f"require: wanted NAME=VALUE, found {text!r}. Name one, or leave it out."
        )
    return wanted


def check_requirements(text: str | None, root: Path) -> None:
    """Raise MachineError if the machine does not meet the requirements; name all that differ."""
    unmet, can_be_set = [], True
    for name, value in parse_requirements(text).items():
        found = CONDITIONS[name](root)
        if found.value is None:
            unmet.append(f"{name}={value}, unknown on this machine: {found.reason}")
            can_be_set = False
            continue
        is_met, choices = value.lower() == found.value.lower(), ""
        if name == "power_mode":
            if known := power_modes(root).values():
                choices = f" (this machine has {', '.join(known)})"
            if number_of(value, root) is not None:
                is_met = number_of(value, root) == number_of(found.value, root)
        if not is_met:
            unmet.append(f"{name}={value}, found {found.value}{choices}")
            can_be_set = can_be_set and name in KNOBS
    if unmet:
        what_to_do = "Leave out what this machine does not have, or use another machine."
        if can_be_set:
            what_to_do = (
                f'As root: stepscope doctor --apply --require "{text}", or run --prepare, which '
                "restores the settings afterwards."
            )
        raise MachineError(f"require: wanted {'; '.join(unmet)}. {what_to_do}")


def wanted_conditions(require: str | None, root: Path) -> dict[str, str]:
    """Return the conditions to set: those of the edge protocol and those required."""
    required = {
        name: value if name == "power_mode" else value.lower()
        for name, value in parse_requirements(require).items()
        if name in KNOBS
    }
    return {**protocol(root), **required}


@contextlib.contextmanager
def prepared(wanted: Mapping[str, str], root: Path) -> Iterator[list[MachineChange]]:
    """Set conditions, and restore the previous ones however this ends, also after a signal."""

    def interrupt(number: int, _: FrameType | None) -> None:
        raise Interrupted(f"interrupted by {signal.Signals(number).name}")

    planned = changes(wanted, root)
    with handling(dict.fromkeys(STOP_SIGNALS, interrupt)):
        apply(planned, root)
        try:
            yield planned
        finally:
            if planned:
                with handling(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN)):
                    restore(root)

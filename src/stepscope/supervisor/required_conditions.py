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
    """Parse conditions such as `power_mode=MAXN,governor=performance`.

    Raises:
        RequestError: a name is unknown, named twice, or has no value.
    """
    wanted: dict[str, str] = {}
    for part in (text or "").split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not name and not equals and not value:
            continue
        if not equals or not value:
            raise RequestError(
                f"require: wanted NAME=VALUE, found {part.strip()!r}. Like governor=performance."
            )
        name = name.replace("-", "_").lower()
        if name not in CONDITIONS:
            raise RequestError(f"require: no condition is {name!r}.{nearest(name, CONDITIONS)}")
        if name in wanted:
            raise RequestError(f"require: {name} stands there twice. Name it once.")
        wanted[name] = value
    if text is not None and not wanted:
        raise RequestError(
            f"require: wanted conditions such as governor=performance, found {text!r}. "
            "Name one, or leave it out."
        )
    return wanted


def check_requirements(text: str | None, root: Path) -> None:
    """Raise if the machine does not meet the requirements.

    Raises:
        MachineError: it is not; all that differs is named.
        RequestError: the requirement cannot be read.
    """
    unmet, can_be_set = [], True
    for name, value in parse_requirements(text).items():
        found = CONDITIONS[name](root)
        if found.value is None:
            unmet.append(f"{name}={value}, which this machine cannot tell: {found.reason}")
            can_be_set = False
        elif not _same(name, value, found.value, root):
            unmet.append(f"{name}={value}, found {found.value}{_choices(name, root)}")
            can_be_set = can_be_set and name in KNOBS
    if unmet:
        what_to_do = "Leave out what cannot be had here, or run it elsewhere."
        if can_be_set:
            what_to_do = (
                f'As root: stepscope doctor --apply --require "{text}", or run --prepare, which '
                "puts back what was."
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
    """Set conditions, and restore the previous ones however this ends.

    A signal that would end the process is raised as Interrupted, so that conditions are restored
    then too. Signals are ignored meanwhile.

    Raises:
        MachineError: something cannot be set, or cannot be put back.
    """
    planned = changes(wanted, root)
    with handling(dict.fromkeys(STOP_SIGNALS, _interrupt)):
        apply(planned, root)
        try:
            yield planned
        finally:
            if planned:
                with handling(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN)):
                    restore(root)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(f"interrupted by {signal.Signals(number).name}")


def _same(name: str, wanted: str, found: str, root: Path) -> bool:
    if name == "power_mode" and number_of(wanted, root) is not None:
        return number_of(wanted, root) == number_of(found, root)
    return wanted.lower() == found.lower()


def _choices(name: str, root: Path) -> str:
    known = list(power_modes(root).values()) if name == "power_mode" else []
    return f" (this machine has {', '.join(known)})" if known else ""

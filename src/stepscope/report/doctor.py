"""How a machine's examination looks: what was found, and under each warning what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.units import format_count

_STYLES = {"ok": "green", "warning": "yellow", "absent": "dim"}


def print_checks(console: Console, checks: Sequence[Mapping[str, Any]]) -> None:
    """Print one line a check; a warning has why it matters and what to do below it."""
    width = max((len(check["name"]) for check in checks), default=0)
    for check in checks:
        status = check["status"]
        line = Text(f"{check['name']:<{width}}  ")
        line.append(f"{status:<7}", style=_STYLES[status])
        line.append(f"  {check['found']}")
        console.print(line, soft_wrap=True)
        if status == "warning":
            below = " " * (width + 11)
            console.print(Text(f"{below}{check['why']}", style="dim"), soft_wrap=True)
            if check["advice"]:
                console.print(Text(f"{below}{check['advice']}"), soft_wrap=True)
    console.print(Text(_in_all(checks)))


def print_changes(console: Console, changes: Sequence[Mapping[str, Any]]) -> None:
    """Print what is to be set, one line each."""
    for change in changes:
        text = f"{change['name']}: {change['before']} -> {change['after']}"
        console.print(Text(text), soft_wrap=True)


def _in_all(checks: Sequence[Mapping[str, Any]]) -> str:
    count = dict.fromkeys(_STYLES, 0)
    for check in checks:
        count[check["status"]] += 1
    warnings = format_count(count["warning"], "warning")
    return f"{count['ok']} ok, {warnings}, {count['absent']} absent"

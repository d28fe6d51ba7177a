"""`stepscope run`: train and record."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rich.console import Console

from stepscope.cli.end_of_run import close, one_display
from stepscope.cli.settings_flags import Settings
from stepscope.cli.streams import AsJson, Switch
from stepscope.hardware.procfs import system_root
from stepscope.report.terminal.doctor_table import print_changes
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import resolve_request
from stepscope.supervisor import start_run
from stepscope.supervisor.hang_watch import parse_hang_after
from stepscope.supervisor.required_conditions import prepared, wanted_conditions


def run(
    spec: Path | None = None,
    /,
    *,
    settings: Settings = None,
    force: Switch = False,
    prepare: Switch = False,
    hang_after: str = "60s",
    on_hang: Literal["warn", "stop"] = "warn",
    json: AsJson = False,
) -> int:
    """Train and record.

    Parameters
    ----------
    spec
        A TOML file of settings, or the run.json of a run to repeat. Flags override it.
    force
        Start even if the forecast exceeds the available memory.
    prepare
        Set power mode, governor, clocks and fan for the run, and restore them; needs root.
    hang_after
        Show all stacks after this long without a step; 0 for never.
    on_hang
        What to do then besides: only warn, or stop the training.
    """
    request = resolve_request(spec, settings or {})
    hang_after_s = parse_hang_after(hang_after)
    with _machine(request, prepare), one_display() as display:
        path, outcome = start_run.start(
            request, display, force=force, hang_after_s=hang_after_s, on_hang=on_hang
        )
    return close(path, outcome, as_json=json)


@contextlib.contextmanager
def _machine(request: RunSpec, prepare: bool) -> Iterator[None]:
    """Prepare the machine for the run if requested, and print what was set."""
    if not prepare:
        yield
        return
    messages = Console(file=sys.stderr)
    root = system_root()
    with prepared(wanted_conditions(request.require, root), root) as changed:
        print_changes(messages, changed)
        if not changed:
            messages.print("nothing to prepare: this machine is already set up")
        yield
    if changed:
        messages.print(f"restored: {', '.join(change['name'] for change in changed)}")

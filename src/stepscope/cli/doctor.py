"""`stepscope doctor`: what this machine can measure, and what distorts measurements."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path

from rich.console import Console

from stepscope.cli.streams import AsJson, Switch, print_answer
from stepscope.doctor import run_checks
from stepscope.errors import RequestError
from stepscope.hardware import machine_setup
from stepscope.hardware.conditions import describe_conditions
from stepscope.hardware.machine_setup import RESTORE, kept_file
from stepscope.hardware.procfs import system_root
from stepscope.records.types import DoctorAnswer, PreparedAnswer, RestoredAnswer
from stepscope.report.terminal.doctor_table import print_changes, print_checks, print_peaks
from stepscope.supervisor.machine_peaks import measure_peaks
from stepscope.supervisor.required_conditions import check_requirements, wanted_conditions


def doctor(
    *,
    data_dir: Path = Path("data"),
    require: str | None = None,
    peaks: Switch = False,
    apply: Switch = False,
    restore: Switch = False,
    yes: Switch = False,
    json: AsJson = False,
) -> int:
    """Check what this machine can measure, and what would distort measurements.

    Parameters
    ----------
    data_dir
        Folder of the data, to check its storage and read speed
    require
        Exit with 5 unless conditions such as power_mode=MAXN,governor=performance hold; --apply
        sets them
    peaks
        Measure the peak compute and memory rates, and save them for reports
    apply
        Set power mode, governor, clocks and fan for measurements; --restore undoes it
    restore
        Restore the settings from before --apply
    yes
        Do not ask for confirmation of --apply
    """
    root = system_root()
    asked = {"--apply": apply, "--restore": restore, "--peaks": peaks}
    found = [flag for flag, given in asked.items() if given]
    if len(found) > 1:
        raise RequestError(
            f"{' and '.join(found)}: wanted only one of them. Call doctor once for each."
        )
    if require is not None and restore:
        raise RequestError(
            "--require: wanted without --restore, which restores the previous settings."
        )
    if yes and not apply:
        raise RequestError("--yes: wanted with --apply, the only option that asks. Leave it out.")
    if apply:
        return _apply(root, require, sure=yes, as_json=json)
    if restore:
        done = machine_setup.restore(root)
        print(f"Restored: {', '.join(done)}." if done else "Nothing to restore.", file=sys.stderr)
        restored: RestoredAnswer = {"restored": done}
        if json:
            print(dumps(restored))
        return 0
    check_requirements(require, root)
    if peaks:
        print_answer(measure_peaks(), print_peaks, as_json=json)
        return 0
    answer: DoctorAnswer = {
        "checks": run_checks(root, data_dir),
        "conditions": describe_conditions(root),
    }
    print_answer(answer, print_checks, as_json=json)
    return 0


def _apply(root: Path, require: str | None, *, sure: bool, as_json: bool) -> int:
    planned = machine_setup.changes(wanted_conditions(require, root), root)
    messages = Console(file=sys.stderr)
    print_changes(messages, planned)
    answer: PreparedAnswer = {"set": [], "kept": None}
    if planned and not sure and not _agreed():
        messages.print("Nothing was changed.")
    else:
        machine_setup.apply(planned, root)
        if planned:
            messages.print(f"Done. Restore the previous settings with: {RESTORE}")
            answer = {"set": planned, "kept": str(kept_file(root))}
        else:
            messages.print("Nothing to change: all settings are as the edge protocol requires.")
        check_requirements(require, root)
    if as_json:
        print(dumps(answer))
    return 0


def _agreed() -> bool:
    """Ask the user for consent; without a terminal the answer is no."""
    if not sys.stdin.isatty():
        raise RequestError(
            "--apply changes settings of this machine: wanted --yes, or a terminal to confirm."
        )
    print("Make these changes? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")

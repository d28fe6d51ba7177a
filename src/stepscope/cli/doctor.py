"""`stepscope doctor`: what this machine can measure, and what makes it unfair."""

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
from stepscope.hardware.machine_setup import PUT_BACK, kept_file
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
    """Say what this machine can measure, what makes it unfair, and what is missing.

    Parameters
    ----------
    data_dir
        The folder under which data lies: its medium is named, and a little of it is read.
    require
        Conditions such as power_mode=MAXN,governor=performance: exits with 5 where one is not
        met. With --apply they are set.
    peaks
        Measure what this machine computes and moves at most, and keep it for later runs.
    apply
        Set what the edge protocol asks: power mode, governor, clocks, fan. What was is kept.
    restore
        Put back what was before --apply.
    yes
        Do not ask before --apply.
    """
    root = system_root()
    asked = {"--apply": apply, "--restore": restore, "--peaks": peaks}
    found = [flag for flag, given in asked.items() if given]
    if len(found) > 1:
        raise RequestError(
            f"{' and '.join(found)}: wanted one of them, found {len(found)}. "
            "Call doctor for each, one after the other."
        )
    if require is not None and restore:
        raise RequestError("--require: wanted without --restore, which puts back what was.")
    if yes and not apply:
        raise RequestError("--yes: wanted beside --apply, which alone asks. Leave it out.")
    if apply:
        return _apply(root, require, sure=yes, as_json=json)
    if restore:
        return _restore(root, as_json=json)
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
        messages.print("nothing was set")
    else:
        machine_setup.apply(planned, root)
        if planned:
            messages.print(f"set; put it back with: {PUT_BACK}")
            answer = {"set": planned, "kept": str(kept_file(root))}
        else:
            messages.print("nothing to set: what this machine has of it is as the protocol asks")
        check_requirements(require, root)
    if as_json:
        print(dumps(answer))
    return 0


def _agreed() -> bool:
    """Ask the user for consent; without a terminal the answer is no."""
    if not sys.stdin.isatty():
        raise RequestError(
            "--apply changes settings of this machine: wanted a terminal to ask on, or --yes."
        )
    print("set this? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _restore(root: Path, *, as_json: bool) -> int:
    done = machine_setup.restore(root)
    said = f"put back: {', '.join(done)}" if done else "there is nothing to put back"
    print(said, file=sys.stderr)
    answer: RestoredAnswer = {"restored": done}
    if as_json:
        print(dumps(answer))
    return 0

"""The end of a command that makes a run: tables or JSON, the page, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from stepscope.cli.streams import print_answer
from stepscope.errors import RequestError, StepscopeError
from stepscope.experiments.sweep_run import SweepInterrupted
from stepscope.hardware.process import find_rank
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Sweep
from stepscope.report.charts.chart import Chart, save
from stepscope.report.progress_bar import LiveDisplay
from stepscope.report.terminal.verdict_text import print_verdict
from stepscope.supervisor.child_supervisor import Outcome
from stepscope.units import format_path

_WIDTH = 80
_LATEST = "latest"
Display = TypeVar("Display", bound=LiveDisplay)


def leave_report(folder: Path, console: Console, *, tables: bool = False) -> None:
    """Write the page of a run or sweep and print its path, or one line on the failure.

    `tables` adds the command that prints the tables of the run.

    Nothing is raised: a failure of the page must not change the result of a finished training.
    """
    try:
        from stepscope.report.html.html_page import write_page_of

        page = write_page_of(folder)
    except StepscopeError as error:
        print(f"stepscope: no report: {error}", file=sys.stderr)
    except Exception as error:
        reason = f"internal error: {type(error).__name__}: {error}"
        print(f"stepscope: no report: {reason}", file=sys.stderr)
    else:
        shown = [f"Page: {_as_typed(page.parent, page.name)}"]
        if tables:
            shown.append(f"All tables: stepscope report {_as_typed(page.parent)}")
        gap = " " * 5 if len("     ".join(shown)) + 2 <= _WIDTH else "\n  "
        console.print(Text(f"\n  {gap.join(shown)}"), soft_wrap=True)


def _as_typed(folder: Path, file: str = "") -> str:
    """Return a path as it is typed in the current folder; the newest run has a short one."""
    latest = folder.parent / _LATEST
    with suppress(OSError):
        folder = latest if latest.resolve() == folder.resolve() else folder
    return format_path(folder / file)


@contextmanager
def display_of_trials(make: Callable[[], Display]) -> Iterator[Display]:
    """Show trials on standard error; if they are interrupted, leave the page of those so far."""
    try:
        with make() as display:
            yield display
    except SweepInterrupted as stopped:
        leave_report(stopped.folder, Console(file=sys.stderr))
        raise


def refuse_flags(*given: object) -> None:
    """Raise RequestError if a flag was given that the folder of `--resume` already records."""
    if any(given):
        raise RequestError("resume: takes no other flag; the folder records them.")


def close_trials(
    answer: object, done: Sweep, show: Callable[[Console, Sweep], None], *, as_json: bool
) -> None:
    """Print the answer of a finished sweep, as JSON or as tables, and leave its page."""
    print_answer(answer, lambda console, _: show(console, done), as_json=as_json)
    leave_report(done.path, Console(file=sys.stderr) if as_json else Console())


def one_display() -> LiveDisplay:
    """Return the progress display; only rank 0 shows anything."""
    rank = find_rank()
    return LiveDisplay(Console(file=sys.stderr, quiet=rank is not None and rank.rank != 0))


def close(path: Path, outcome: Outcome, *, as_json: bool, console: Console | None = None) -> int:
    """Print the result of a finished run, on rank 0 only; return its exit code."""
    if path.parent.name == schema.RANKS:
        return outcome.exit_code
    run = load_run(path)
    if as_json:
        print(json.dumps({**run.info, "path": str(path)}))
    else:
        print_verdict(console or Console(), run)
    # Standard output is reserved for run.json.
    shown = Console(file=sys.stderr) if as_json else console or Console()
    leave_report(path, shown, tables=not as_json)
    if outcome.reason:
        print(f"stepscope: {outcome.reason}", file=sys.stderr)
    if outcome.status == schema.INTERRUPTED and run.info.get("kind") == "run":
        print(f"stepscope: to continue: stepscope resume {path}", file=sys.stderr)
    return outcome.exit_code


def leave_chart(chart: Chart, file: Path, *, as_json: bool) -> None:
    """Write a chart and print its path; with `--json`, on standard error."""
    print(f"chart: {save(chart, file)}", file=sys.stderr if as_json else sys.stdout)

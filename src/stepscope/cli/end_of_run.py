"""How a command that makes a run ends: its tables or its JSON, its reason, its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stepscope.errors import StepscopeError
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.report.charts.chart import Chart, save
from stepscope.report.progress_bar import LiveDisplay
from stepscope.report.terminal.run_tables import print_run
from stepscope.supervisor.child_supervisor import Outcome
from stepscope.supervisor.rank_processes import find_rank
from stepscope.units import format_path

# --- The page that every run and sweep leaves behind, whatever else happened


def leave_report(folder: Path, console: Console) -> None:
    """Write the page of a run or sweep and print its path; where that fails, one line says why.

    A training that has ended is not to end otherwise because of its page: nothing is raised.
    """
    try:
        from stepscope.report.html.html_page import write_page_of

        page = write_page_of(folder)
    except StepscopeError as error:
        print(f"stepscope: no report: {error}", file=sys.stderr)
    except Exception as error:
        fault = f"a fault of stepscope: {type(error).__name__}: {error}"
        print(f"stepscope: no report: {fault}", file=sys.stderr)
    else:
        console.print(Text(f"report: {format_path(page)}"), soft_wrap=True)


def one_display() -> LiveDisplay:
    """Return what shows how a run goes; of several ranks, only the first shows anything."""
    place = find_rank()
    return LiveDisplay(Console(file=sys.stderr, quiet=place is not None and place.rank != 0))


def close(path: Path, outcome: Outcome, *, as_json: bool, console: Console | None = None) -> int:
    """Print what a finished run has to say; return its exit code. Rank 0 speaks for all."""
    if path.parent.name == schema.RANKS:
        return outcome.exit_code
    run = load_run(path)
    if as_json:
        print(json.dumps({**run.info, "path": str(path)}))
    else:
        print_run(console or Console(), run)
    # Only run.json goes to standard output then.
    leave_report(path, Console(file=sys.stderr) if as_json else console or Console())
    if outcome.reason:
        print(f"stepscope: {outcome.reason}", file=sys.stderr)
    if outcome.status == schema.INTERRUPTED and run.info.get("kind") == "run":
        print(f"stepscope: go on with: stepscope resume {path}", file=sys.stderr)
    return outcome.exit_code


# --- A chart of an answer, in a file that somebody named


def leave_chart(chart: Chart, file: Path, *, as_json: bool) -> None:
    """Write a chart and print its path; beside JSON, not on standard output."""
    print(f"chart: {save(chart, file)}", file=sys.stderr if as_json else sys.stdout)

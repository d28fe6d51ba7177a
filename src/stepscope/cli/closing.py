"""How a command that makes a run ends: its tables or its JSON, its reason, its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from stepscope.cli.report_at_end import leave_report
from stepscope.experiments.ranks import find_place
from stepscope.experiments.supervise import Outcome
from stepscope.records import schema
from stepscope.records.reader import load_run
from stepscope.report.live import LiveDisplay
from stepscope.report.terminal import print_run


def one_display() -> LiveDisplay:
    """Return what shows how a run goes; of several ranks, only the first shows anything."""
    place = find_place()
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

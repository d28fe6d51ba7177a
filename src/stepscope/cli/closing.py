"""How a command that makes a run ends: its tables or its JSON, its reason, its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from stepscope.cli.report_at_end import leave_report
from stepscope.experiments.supervise import Outcome
from stepscope.records import schema
from stepscope.records.reader import load_run
from stepscope.report.terminal import print_run


def close(path: Path, outcome: Outcome, *, as_json: bool, console: Console | None = None) -> int:
    """Print what a finished run has to say; return its exit code."""
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

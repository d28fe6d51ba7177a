"""`stepscope resume`: go on with a run that was stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.where_time_goes import summarize
from stepscope.cli.closing import close
from stepscope.experiments import single
from stepscope.report.live import LiveDisplay


def resume(path: Path, /, *, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Go on with a stopped run, in its folder, from its checkpoint.

    Parameters
    ----------
    path
        The run folder.
    json
        Print run.json, and nothing else, on standard output.
    """
    with LiveDisplay(Console(file=sys.stderr)) as display:
        found, outcome = single.resume(path, display, summarize)
    return close(found, outcome, as_json=json)

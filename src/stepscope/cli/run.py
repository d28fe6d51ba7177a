"""`stepscope run`: train and record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.where_time_goes import summarize
from stepscope.cli.closing import close
from stepscope.cli.flags import SpecFlags
from stepscope.experiments import single
from stepscope.report.live import LiveDisplay
from stepscope.spec.load import resolve_request


def run(
    spec: Path | None = None,
    /,
    *,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train and record.

    Parameters
    ----------
    spec
        A TOML file of settings, or the run.json of a run to repeat. Flags win over it.
    force
        Begin also a run that is forecast to take more memory than there is.
    json
        Print run.json, and nothing else, on standard output.
    """
    asked = resolve_request(spec, settings or {})
    with LiveDisplay(Console(file=sys.stderr)) as display:
        path, outcome = single.start(asked, display, summarize, force=force)
    return close(path, outcome, as_json=json)

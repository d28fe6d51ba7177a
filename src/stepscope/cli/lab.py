"""`stepscope lab`: experiments by name, each an answer for this machine."""

from __future__ import annotations

import sys
from json import dumps
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.where_time_goes import summarize
from stepscope.cli.flags import SpecFlags
from stepscope.experiments.labs import LABS, Tools, find
from stepscope.report.labs import print_finding, print_labs
from stepscope.report.live import LiveDisplay
from stepscope.spec.load import resolve_request


def lab(
    name: str | None = None,
    /,
    *,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Do an experiment, and print what it found; without a name, list them.

    Exits with 1 where the answer is no.

    Parameters
    ----------
    name
        Which experiment.
    json
        Print one JSON object, and nothing else, on standard output.
    """
    if name is None:
        if json:
            print(dumps({"labs": [{"name": each, "about": about} for each, about in LABS.items()]}))
        else:
            print_labs(Console(), LABS)
        return 0
    investigation = find(name)
    spec = resolve_request(None, {**investigation.DEFAULTS, **(settings or {})})
    with LiveDisplay(Console(file=sys.stderr)) as display:
        tools = Tools(display, summarize, display.output)
        finding = investigation.investigate(spec, tools)
    told = {"lab": name, "answer": finding.answer, "holds": finding.holds, **finding.figures}
    if json:
        print(dumps(told))
    else:
        print_finding(Console(), told)
    return 0 if finding.holds else 1

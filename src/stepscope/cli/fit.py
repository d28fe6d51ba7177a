"""`stepscope fit`: the largest batch that fits, found by trying."""

from __future__ import annotations

import sys
from json import dumps
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.where_time_goes import summarize
from stepscope.cli.flags import SpecFlags
from stepscope.experiments import fit as trials
from stepscope.report.fit import TrialDisplay, print_answer
from stepscope.spec.load import resolve_request


def fit(
    model: str,
    /,
    *,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find the largest batch that fits, by short runs in processes that may die.

    Exits with 1 where none fits, or where the --batch-size that was given does not.

    Parameters
    ----------
    model
        A network of the zoo, or package.module:factory for your own.
    json
        Print one JSON object, and nothing else, on standard output.
    """
    given = settings or {}
    spec = resolve_request(None, {**given, "model": model})
    with TrialDisplay(Console(file=sys.stderr)) as display:
        answer = trials.fit(spec, display, summarize, asked="batch_size" in given)
    found = answer.to_json()
    if json:
        print(dumps(found))
    else:
        print_answer(Console(), found)
    if found["reason"]:
        print(f"stepscope: {found['reason']}", file=sys.stderr)
    return answer.exit_code

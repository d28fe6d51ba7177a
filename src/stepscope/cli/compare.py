"""`stepscope compare`: side by side, with intervals."""

from __future__ import annotations

import re
import sys
from json import dumps
from typing import Any

from rich.console import Console

from stepscope.analyze import comparison
from stepscope.analyze.comparison_sides import read_sides
from stepscope.cli.completion import RunText
from stepscope.cli.streams import AsJson
from stepscope.errors import AnswerIsNo, RequestError
from stepscope.report.terminal.compare_table import comparison_as_json, print_comparison
from stepscope.units import format_share

_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(%?)\s*", re.ASCII)
_TOLD = {
    "slower": "{name} is slower than the baseline by more than {share}",
    "not_slower": "{name} is not slower than the baseline by more than {share}",
    "cannot_tell": "it could not be shown whether {name} is slower than the baseline by more than "
    "{share}: more rounds would tell",
}


def compare(*sides: RunText, fail_if_slower: str | None = None, json: AsJson = False) -> int:
    """Compare runs, sets of runs or settings of a sweep with the first one, the baseline.

    Exits with 1 where one is certainly slower than --fail-if-slower allows.

    Parameters
    ----------
    sides
        What to compare: a run folder; a set of runs, a,b,c or a folder of runs; a sweep folder,
        for all its settings; one setting of a sweep, SWEEP:workers=2.
    fail_if_slower
        Exit with 1 if a side certainly loses more than this of the baseline's throughput: 5% or
        0.05.
    """
    most_slowdown = None if fail_if_slower is None else _read_share(fail_if_slower)
    found = comparison.compare(read_sides(sides))
    limited = None if most_slowdown is None else _held_against(found, most_slowdown)
    if json:
        print(dumps({**comparison_as_json(found), "fail_if_slower": limited}))
    else:
        print_comparison(Console(), found)
    if most_slowdown is None or limited is None:
        return 0
    for answer, told in _TOLD.items():
        for name in limited[answer]:
            about = told.format(name=name, share=format_share(most_slowdown))
            print(f"stepscope: {about}", file=sys.stderr)
    return AnswerIsNo.exit_code if limited["slower"] else 0


def _held_against(found: comparison.Comparison, most_slowdown: float) -> dict[str, Any]:
    """Group the sides by whether they are slower than permitted."""
    sorted_names: dict[str, list[str]] = {answer: [] for answer in _TOLD}
    for each in found.others:
        is_slower = comparison.slower_than(each, most_slowdown)
        answer = "cannot_tell" if is_slower is None else "slower" if is_slower else "not_slower"
        sorted_names[answer].append(each.figures.name)
    return {"most_slowdown": most_slowdown, **sorted_names}


def _read_share(text: str) -> float:
    read = _SHARE.fullmatch(text)
    share = float(read[1]) / (100 if read[2] else 1) if read else 1.0
    if share >= 1:
        raise RequestError(
            f"fail_if_slower: wanted a share of the throughput below 100 %, like 5% or 0.05, found "
            f"{text!r}."
        )
    return share

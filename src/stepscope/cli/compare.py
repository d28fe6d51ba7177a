"""`stepscope compare`: side by side, with intervals."""

from __future__ import annotations

import re
import sys

from stepscope.analyze import comparison
from stepscope.analyze.comparison_sides import read_sides
from stepscope.analyze.comparison_verdict import check_slowdown
from stepscope.cli.completion import RunText
from stepscope.cli.streams import AsJson, print_answer
from stepscope.errors import AnswerIsNo, RequestError, Undecided
from stepscope.report.terminal.compare_table import print_comparison

_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(%?)\s*", re.ASCII)


def compare(*sides: RunText, fail_if_slower: str | None = None, json: AsJson = False) -> int:
    """Compare runs, sets of runs or settings of a sweep with the first one, the baseline.

    With --fail-if-slower, the exit code is 0 if every side is shown to be within the limit, 1 if
    one is shown to be slower or has no completed run, and 6 if the runs do not suffice to tell.

    Parameters
    ----------
    sides
        What to compare: a run folder; a set of runs, a,b,c or a folder of runs; a sweep folder,
        for all its settings; one setting of a sweep, SWEEP:workers=2.
    fail_if_slower
        Exit with 1 if a side loses more than this of the baseline's throughput, 5% or 0.05; with 6
        if undecided.
    """
    most_slowdown = None if fail_if_slower is None else _read_share(fail_if_slower)
    read = read_sides(sides)
    found = comparison.compare(read)
    limited = None if most_slowdown is None else check_slowdown(read, most_slowdown)
    found["fail_if_slower"] = limited
    print_answer(found, print_comparison, as_json=json)
    if limited is None:
        return 0
    for message in limited["messages"]:
        print(f"stepscope: {message}", file=sys.stderr)
    if limited["slower"]:
        return AnswerIsNo.exit_code
    return Undecided.exit_code if limited["cannot_tell"] else 0


def _read_share(text: str) -> float:
    read = _SHARE.fullmatch(text)
    share = float(read[1]) / (100 if read[2] else 1) if read else 1.0
    if share >= 1:
        raise RequestError(
            f"fail_if_slower: wanted a share of the throughput below 100 %, like 5% or 0.05, found "
            f"{text!r}."
        )
    return share

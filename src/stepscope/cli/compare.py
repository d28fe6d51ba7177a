"""`stepscope compare`: side by side, with intervals."""

from __future__ import annotations

import re
import sys

from stepscope.analyze import comparison
from stepscope.analyze.comparison_sides import read_sides
from stepscope.cli.completion import RunText
from stepscope.cli.streams import AsJson, print_answer
from stepscope.errors import AnswerIsNo, RequestError
from stepscope.records.types import CompareAnswer, SlowdownCheck
from stepscope.report.terminal.compare_table import print_comparison
from stepscope.units import format_share

_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(%?)\s*", re.ASCII)


def compare(*sides: RunText, fail_if_slower: str | None = None, json: AsJson = False) -> int:
    """Compare runs, sets of runs or settings of a sweep with the first one, the baseline.

    The exit code is 1 if one is certainly slower than --fail-if-slower allows.

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
    limited = None if most_slowdown is None else _check_slowdown(found, most_slowdown)
    found["fail_if_slower"] = limited
    print_answer(found, print_comparison, as_json=json)
    if most_slowdown is None or limited is None:
        return 0
    share = format_share(most_slowdown)
    for answer, names in (
        ("{} is slower than the baseline by more than {}", limited["slower"]),
        ("{} is not slower than the baseline by more than {}", limited["not_slower"]),
        (
            "undecided whether {} is slower than the baseline by more than {}: use more rounds",
            limited["cannot_tell"],
        ),
    ):
        for name in names:
            print(f"stepscope: {answer.format(name, share)}", file=sys.stderr)
    return AnswerIsNo.exit_code if limited["slower"] else 0


def _check_slowdown(found: CompareAnswer, most_slowdown: float) -> SlowdownCheck:
    """Group the sides by whether they are slower than permitted."""
    names: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for each in found["others"]:
        names[comparison.slower_than(each, most_slowdown)].append(each["name"])
    return {
        "most_slowdown": most_slowdown,
        "slower": names[True],
        "not_slower": names[False],
        "cannot_tell": names[None],
    }


def _read_share(text: str) -> float:
    read = _SHARE.fullmatch(text)
    share = float(read[1]) / (100 if read[2] else 1) if read else 1.0
    if share >= 1:
        raise RequestError(
            f"fail_if_slower: wanted a share of the throughput below 100 %, like 5% or 0.05, found "
            f"{text!r}."
        )
    return share

"""A comparison as tables: verdicts with their certainty, figures side by side, warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stepscope.analyze.comparison import (
    CONFIDENCE,
    Against,
    Comparison,
    as_sentence,
    slowdown_is_excluded,
)
from stepscope.records import schema
from stepscope.records.types import CompareAnswer, ComparedFigures, RatioRecord, SlowdownCheck
from stepscope.report.terminal.table_style import house_table, print_table, printable, say
from stepscope.stats import CANNOT_TELL, NO_DIFFERENCE, Ratio
from stepscope.units import (
    format_bytes,
    format_duration,
    format_known,
    format_range,
    format_share,
)


def print_comparison(console: Console, found: Comparison) -> None:
    """Print the verdicts, the figures side by side, and all warnings."""
    print_table(console, _verdict_table(found))
    print_table(console, _figures_table(found))
    say(console, *map(printable, _lines(found)))


def comparison_as_json(found: Comparison, limited: SlowdownCheck | None) -> CompareAnswer:
    """Return the comparison as one JSON object; `limited` is of `--fail-if-slower`."""
    return {
        "baseline": found.baseline,
        "others": [
            {
                **each.figures,
                "ratio": None if each.ratio is None else cast("RatioRecord", asdict(each.ratio)),
                "verdict": each.verdict,
                "changed": each.changed,
                "environment_differs": each.environment_differs,
                "warnings": [*each.warnings, *each.figures["warnings"]],
                "rounds_needed_for_5_percent": each.rounds_needed_for_5_percent,
            }
            for each in found.others
        ],
        "confidence": CONFIDENCE,
        "confidence_of_each": found.confidence_of_each,
        "rounds": found.rounds,
        "offer": found.offer,
        "fail_if_slower": limited,
    }


def _verdict_table(found: Comparison) -> Table:
    columns = ("", "runs", "samples/s", "interval", "ratio", "interval", "verdict")
    table = house_table(*columns, left=(0, 6))
    table.add_row(*_rate_cells(found.baseline), "1", "", "the baseline")
    for each in found.others:
        table.add_row(*_rate_cells(each.figures), *_ratio_cells(each.ratio), each.verdict)
    return table


def _rate_cells(figures: ComparedFigures) -> list[str | Text]:
    cells: list[str | Text] = [Text(printable(figures["name"])), str(figures["runs"])]
    rate = figures["samples_per_s"]
    if rate is None or rate["median"] is None:
        return [*cells, "?", ""]
    return [*cells, _rate(rate["median"]), format_range(rate["low"], rate["high"], _rate)]


def _ratio_cells(ratio: Ratio | None) -> list[str]:
    if ratio is None:
        return ["?", ""]
    factor = "{:.3f}".format
    return [factor(ratio.ratio), format_range(ratio.low, ratio.high, factor)]


def _rate(samples_per_s: float) -> str:
    return f"{samples_per_s:,.0f}" if samples_per_s >= 1000 else f"{samples_per_s:.4g}"


def _figures_table(found: Comparison) -> Table:
    sides = [found.baseline, *(each.figures for each in found.others)]
    table = house_table("median of the runs", *(escape(printable(side["name"])) for side in sides))

    def add(name: str, values: Iterable[float | None], form: Callable[[float], str]) -> None:
        table.add_row(name, *(format_known(value, form) for value in values))

    add("step", (side["step_s"] for side in sides), format_duration)
    for phase in schema.PHASES:
        shares = (side["phases"][phase] if side["phases"] else None for side in sides)
        add(f"  {phase}", shares, format_share)
    add("peak memory", (side["peak_memory_bytes"] for side in sides), format_bytes)
    add("test accuracy", (side["test_accuracy"] for side in sides), format_share)
    return table


def _lines(found: Comparison) -> Iterator[str]:
    yield from (f"{found.baseline['name']}: {warning}" for warning in found.baseline["warnings"])
    for each in found.others:
        name = each.figures["name"]
        if each.changed:
            yield f"{name}: changed: {as_sentence(each.changed)}"
        for warning in (*each.warnings, *each.figures["warnings"]):
            yield f"{name}: {warning}"
        if each.verdict == CANNOT_TELL:
            yield f"{name}: cannot tell: {_why_not(each)}"
        if each.verdict == NO_DIFFERENCE:
            yield f"{name}: no difference detected: {_what_was_seen(each)}"
    if len(found.others) > 1:
        yield (
            f"each interval of a ratio has {found.confidence_of_each * 100:.4g} % confidence, so "
            f"that all {len(found.others)} hold together with {CONFIDENCE * 100:.0f} %"
        )
    if found.offer:
        yield f"to find out: {found.offer}"
    elif found.rounds:
        yield f"to find out, run each of them {found.rounds} times, in turn, and compare the sets"


def _why_not(each: Against) -> str:
    if each.ratio is not None:
        return "too few rounds for an interval: repeat with at least 3"
    if each.figures["runs"]:
        return "the two have no run, or no round of a sweep, to be compared by"
    return "no run of it counts"


def _what_was_seen(each: Against) -> str:
    ratio = each.ratio
    if ratio is None or ratio.low is None or ratio.high is None or ratio.noise is None:
        return ""
    low, high = format_share(ratio.low), format_share(ratio.high)
    seen = f"its throughput is {low} to {high} of the baseline's"
    if slowdown_is_excluded(each):
        return f"{seen}, so it is not 5 % slower"
    noise = format_share(math.expm1(ratio.noise))
    return f"{seen}. Two equal runs differ by {noise} here: {_what_it_takes(each)}"


def _what_it_takes(each: Against) -> str:
    rounds = each.rounds_needed_for_5_percent
    found = "to find a slowdown of 5 % in four cases of five takes"
    if rounds is None:
        return f"{found} more than 200 rounds"
    left_open = "" if rounds > each.runs_each else f", and the {each.runs_each} run left it open"
    return f"{found} {rounds} rounds{left_open}"

"""A comparison as tables: verdicts with their certainty, figures side by side, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from stepscope.analyze.comparison import as_sentence
from stepscope.analyze.comparison_verdict import (
    ends_of,
    excludes_slowdown,
    format_rounds,
    runs_each,
)
from stepscope.records import schema
from stepscope.records.types import CompareAnswer, ComparedFigures, ComparedSide, Verdict
from stepscope.report.terminal.table_style import print_prose, print_rows, printable, say
from stepscope.stats.decide import NO_DIFFERENCE
from stepscope.units import (
    duration_format,
    format_bytes,
    format_known,
    format_range,
    format_share,
)

_NAME_WIDTH = 20


def print_comparison(console: Console, found: CompareAnswer) -> None:
    """Print throughput and verdicts, the other figures, warnings, and the answer."""
    sides = [found["baseline"], *found["others"]]
    _print_rows(console, _totals(sides), ("runs", "mean step", "peak memory", "test accuracy"))
    _print_rows(console, [*map(_phases, sides)], schema.PHASES)
    _print_rows(console, _throughput(found), ("samples/s", "ratio", "95 % interval", "verdict"))
    for line in _lines(found):
        print_prose(console, printable(line))
    console.print()
    print_conclusion(console, found["verdict"])
    if found["rounds"] and not found["offer"]:
        times = f"{found['rounds']} times"
        say(console, f"To find out, run each {times}, in turn, and compare the sets.")


def print_conclusion(console: Console, verdict: Verdict) -> None:
    """Print which side to use, and the command that decides what is open."""
    print_prose(console, printable(verdict["text"]), style="bold")
    if verdict["command"]:
        say(console, f"To find out: {printable(verdict['command'])}")


_Rows = list[list[str]]


def _print_rows(console: Console, rows: _Rows, columns: Sequence[str]) -> None:
    """Print a row for each side; a long name continues below, so that 80 columns suffice."""
    print_rows(console, ("median of runs", *columns), rows, name_width=_NAME_WIDTH)


def _throughput(found: CompareAnswer) -> _Rows:
    baseline = found["baseline"]
    rows = [[baseline["name"], _rate(baseline), "1", "", "baseline"]]
    for each in found["others"]:
        ratio, interval = "?", ""
        if (seen := each["ratio"]) is not None:
            ratio = f"{seen['ratio']:.3f}"
            interval = format_range(seen["low"], seen["high"], "{:.3f}".format)
        rows.append([each["name"], _rate(each), ratio, interval, each["verdict"]])
    return rows


def _rate(figures: ComparedFigures) -> str:
    rate = figures["samples_per_s"]
    if rate is None or rate["median"] is None:
        return "?"
    return f"{rate['median']:,.0f}" if rate["median"] >= 1000 else f"{rate['median']:.4g}"


def _phases(side: ComparedFigures) -> list[str]:
    phases = side["phases"] or {}
    shares = (format_known(phases.get(phase), format_share) for phase in schema.PHASES)
    return [side["name"], *shares]


def _totals(sides: Sequence[ComparedFigures]) -> _Rows:
    step = duration_format(side["step_s"] for side in sides)
    return [
        [
            side["name"],
            str(side["runs"]),
            format_known(side["step_s"], step),
            format_known(side["peak_memory_bytes"], format_bytes),
            format_known(side["test_accuracy"], format_share),
        ]
        for side in sides
    ]


def _lines(found: CompareAnswer) -> Iterator[str]:
    baseline, others = found["baseline"], found["others"]
    yield from (f"{baseline['name']}: {warning}" for warning in baseline["warnings"])
    for each in others:
        if each["changed"]:
            yield f"{each['name']}: changed: {as_sentence(each['changed'])}"
        for warning in each["warnings"]:
            yield f"{each['name']}: {warning}"
    if len(others) > 1:
        yield (
            f"The {len(others)} verdicts and intervals hold together with "
            f"{found['confidence'] * 100:.0f} % confidence."
        )
    yield from (_answer(each, baseline) for each in others)


def _answer(each: ComparedSide, baseline: ComparedFigures) -> str:
    """Return the result for one side in a sentence."""
    ratio, both = each["ratio"], (each["name"], baseline["name"])
    ends = ends_of(each)
    if ratio is None or ends is None:
        why = "too few rounds for an interval, at least 3 are needed"
        if ratio is None:
            shared = "they have no runs or rounds in common"
            why = shared if each["runs"] else "it has no usable run"
        return f"Cannot tell whether {' is faster or slower than '.join(both)}: {why}."
    seen = f"{ratio['ratio']:.3g} times the throughput ({ends[0]:.3g} to {ends[1]:.3g})"
    if each["verdict"] != NO_DIFFERENCE:
        return f"{each['name']} is {each['verdict']} than {baseline['name']}: {seen}."
    answer = f"No difference detected between {' and '.join(both)}: {seen}"
    if excludes_slowdown(each):
        return f"{answer}. A slowdown of 5 % is excluded."
    needed = format_rounds(each["rounds_needed_for_5_percent"])
    runs = runs_each(baseline, each)
    return f"{answer}. To detect a slowdown of 5 %, use {needed}; {runs} were run."

"""A comparison as tables: verdicts with their certainty, figures side by side, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from stepscope.analyze.comparison import as_sentence, runs_each, slower_than
from stepscope.records import schema
from stepscope.records.types import CompareAnswer, ComparedFigures, ComparedSide
from stepscope.report.terminal.table_style import print_prose, print_rows, printable, say
from stepscope.stats.decide import CANNOT_TELL, FASTER, NO_DIFFERENCE
from stepscope.units import (
    duration_format,
    format_bytes,
    format_known,
    format_range,
    format_share,
)

_NAME_WIDTH = 20
_WIDE = 1.2  # the ends of an interval that decides nothing


def print_comparison(console: Console, found: CompareAnswer) -> None:
    """Print throughput and verdicts, the other figures, warnings, and the answer."""
    sides = [found["baseline"], *found["others"]]
    _print_rows(console, _totals(sides), ("runs", "step", "peak memory", "test accuracy"))
    _print_rows(console, [*map(_phases, sides)], schema.PHASES)
    _print_rows(console, _throughput(found), ("samples/s", "ratio", "95 % interval", "verdict"))
    for line in _lines(found):
        print_prose(console, printable(line))
    if found["offer"]:
        say(console, f"To find out: {printable(found['offer'])}")
    elif found["rounds"]:
        times = f"{found['rounds']} times"
        say(console, f"To find out, run each {times}, in turn, and compare the sets.")
    console.print()
    print_prose(console, printable(conclusion_of(found)), style="bold")


def conclusion_of(found: CompareAnswer) -> str:
    """Return in one sentence which side to use, and what it brings against the baseline."""
    baseline, others = found["baseline"]["name"], found["others"]
    known = [(seen["ratio"], each) for each in others if (seen := each["ratio"]) is not None]
    faster = [pair for pair in known if pair[1]["verdict"] == FASTER]
    if faster:
        ratio, best = max(faster, key=lambda pair: pair[0])
        name = best["name"]
        return f"Use {name}: {_times(ratio)} times faster than {baseline}{_interval(best)}."
    if any(each["verdict"] == CANNOT_TELL for each in others):
        looks = [(1.0, baseline), *((ratio, each["name"]) for ratio, each in known)]
        return (
            f"Undecided: {max(looks)[1]} looks fastest, but there are too few rounds to tell. "
            "Repeat each setting at least three times."
        )
    ratio, best = max(known, key=lambda pair: pair[0])
    name = best["name"]
    if best["verdict"] == NO_DIFFERENCE and _is_wide(best):
        return (
            f"Undecided: {name} looks {_times(ratio)} times as fast as {baseline}, but the rounds "
            f"differ too much to tell{_interval(best)}. Use more rounds, on a quiet machine."
        )
    if len(others) > 1:
        return f"Keep {baseline}: none of the {len(others)} others is measurably faster."
    if best["verdict"] == NO_DIFFERENCE:
        return f"Keep {baseline}: {name} is not measurably faster or slower{_interval(best)}."
    return f"Keep {baseline}: {name} is slower, {_times(ratio)} times as fast{_interval(best)}."


def _ends(each: ComparedSide) -> tuple[float, float] | None:
    """Return the interval of the ratio to the baseline; None if it is unknown."""
    ratio = each["ratio"]
    if ratio is None or ratio["low"] is None or ratio["high"] is None:
        return None
    return ratio["low"], ratio["high"]


def _is_wide(each: ComparedSide) -> bool:
    ends = _ends(each)
    return ends is None or ends[1] > _WIDE * ends[0]


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 10 else f"{ratio:,.0f}"


def _interval(each: ComparedSide) -> str:
    ends = _ends(each)
    return "" if ends is None else f" ({_times(ends[0])} to {_times(ends[1])})"


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
            f"The {len(others)} intervals hold together with {found['confidence'] * 100:.0f} % "
            f"confidence ({found['confidence_of_each'] * 100:.4g} % each)."
        )
    yield from (_answer(each, baseline) for each in others)


def _answer(each: ComparedSide, baseline: ComparedFigures) -> str:
    """Return the result for one side in a sentence."""
    ratio, both = each["ratio"], (each["name"], baseline["name"])
    ends = _ends(each)
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
    if slower_than(each) is False:
        return f"{answer}. A slowdown of 5 % is excluded."
    rounds = each["rounds_needed_for_5_percent"]
    needed = f"{rounds} rounds" if rounds else "more than 200 rounds"
    runs = runs_each(baseline, each)
    return f"{answer}. To detect a slowdown of 5 %, use {needed}; {runs} were run."

"""What a comparison says: which side to use, and whether one is slower than permitted.

Every statement is one of `stats.decide`; this module chooses the words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from stepscope.analyze.comparison_sides import NODE, Side, in_rounds
from stepscope.records.types import (
    ComparedFigures,
    ComparedSide,
    SlowdownCheck,
    Verdict,
)
from stepscope.stats.decide import (
    CANNOT_TELL,
    ERROR,
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    GateResult,
    Ratio,
    TimedRate,
    contrast,
    contrast_of_sets,
    gate_of,
    rounds_for,
    verdict,
)
from stepscope.units import format_count, format_share

SOUGHT_SLOWDOWN = 0.05
_WIDE = 1.2  # the ends of an interval that decides nothing


# --- Two sides


def rounds_from(
    ratio: Ratio | None, baseline: Side, other: Side, slowdown: float, error: float
) -> tuple[int, int | None] | None:
    """Return how many rounds detect a slowdown, by the noise of those that were run."""
    if ratio is None or ratio.noise is None:
        return None
    rounds = ratio.rounds or min(len(baseline.runs), len(other.runs))
    return rounds_for(ratio.noise, rounds, slowdown, error)


def contrast_with(baseline: Side, other: Side) -> Callable[[float], Ratio | None]:
    """Return the comparison of two sides, to be called with its error rate."""
    if on_other_nodes(baseline, other):
        return lambda error: None
    if in_rounds(baseline, other):
        ours, theirs = (
            {each.round: each.samples_per_s for each in side.runs} for side in (baseline, other)
        )
        rounds = [*{**ours, **theirs}]
        return partial(contrast, [*map(ours.get, rounds)], [*map(theirs.get, rounds)])
    return partial(contrast_of_sets, *_with_times(baseline, other))


def _with_times(baseline: Side, other: Side) -> tuple[list[TimedRate], list[TimedRate]]:
    """Return the throughputs with the start of each run; if unknown, they ran one by one."""
    runs = [*baseline.runs, *other.runs]
    started = [each.run.info.get("started_unix_s") if each.run else None for each in runs]
    known = [at for at in started if at is not None]
    times = known if len(known) == len(runs) else [*map(float, range(len(runs)))]
    timed = [(each.samples_per_s, at) for each, at in zip(runs, times, strict=True)]
    return timed[: len(baseline.runs)], timed[len(baseline.runs) :]


def on_other_nodes(baseline: Side, other: Side) -> bool:
    """Return whether two settings of a sweep ran on nodes of different kinds."""
    kinds = [(side.values or {}).get(NODE) for side in (baseline, other)]
    return in_rounds(baseline, other) and kinds[0] != kinds[1]


def runs_each(baseline: ComparedFigures, other: ComparedSide) -> int:
    """Return the number of runs, or of rounds, that both sides have."""
    rounds = other["ratio"] and other["ratio"]["rounds"]
    return min(baseline["runs"], other["runs"]) if rounds is None else rounds


def excludes_slowdown(compared: ComparedSide) -> bool:
    """Return whether the whole interval is above a slowdown of 5 %."""
    ratio = compared["ratio"]
    return bool(ratio and ratio["low"] is not None and ratio["low"] >= 1 - SOUGHT_SLOWDOWN)


# --- Which side to use


def verdict_on_sides(
    sides: Sequence[Side], others: Sequence[ComparedSide], command: str | None
) -> Verdict:
    """Return in one sentence which side to use; `command` decides what is open."""
    best = best_of(others)
    if best is None:
        cause, text = _without_a_faster_one(sides[0].name, others)
        return _verdict(text, cause, command)
    name, ratio, ends = best["name"], _ratio_of(best), ends_of(best)
    text = f"Use {name}: {times(ratio)} times faster than {sides[0].name}{interval_of_side(best)}."
    by_name = {side.name: side for side in sides}
    alike = [
        each["name"]
        for each in others
        if each is not best
        and each["verdict"] == FASTER
        and not _is_slower(by_name[name], by_name[each["name"]], len(sides))
    ]
    if alike:
        text += f" Not shown to be slower than it: {', '.join(alike)}."
    return {**_verdict(text, FASTER, command), "expected_speedup": ratio, "interval": ends}


def best_of(others: Sequence[ComparedSide]) -> ComparedSide | None:
    """Return the fastest of the sides that are shown to be faster than the baseline."""
    return max((each for each in others if each["verdict"] == FASTER), key=_ratio_of, default=None)


def _ratio_of(each: ComparedSide) -> float:
    return each["ratio"]["ratio"] if each["ratio"] else 0.0


def _verdict(text: str, cause: str, command: str | None) -> Verdict:
    return {
        "text": text,
        "cause": cause,
        "expected_speedup": None,
        "interval": None,
        "command": command,
    }


def _is_slower(best: Side, other: Side, sides: int) -> bool:
    """Return whether a side is slower than the best; any two of the sides might be asked about."""
    return verdict(contrast_with(best, other)(ERROR / math.comb(sides, 2))) == SLOWER


def _without_a_faster_one(baseline: str, others: Sequence[ComparedSide]) -> tuple[str, str]:
    """Return the cause and the sentence where no side is shown to be faster."""
    best = max(others, key=_ratio_of)
    name, ratio = best["name"], _ratio_of(best)
    if any(each["verdict"] == CANNOT_TELL for each in others):
        return "undecided", (
            f"Undecided: {name if ratio > 1 else baseline} looks fastest, but there are too few "
            "rounds to tell. Repeat each setting at least three times."
        )
    if best["verdict"] == NO_DIFFERENCE and _is_wide(best):
        return "undecided", (
            f"Undecided: {name} looks {times(ratio)} times as fast as {baseline}, but the rounds "
            f"differ too much to tell{interval_of_side(best)}. Keep {baseline} until more rounds, "
            "on a quiet machine, show a difference."
        )
    if len(others) > 1:
        return "none", f"Keep {baseline}: none of the {len(others)} others is shown to be faster."
    if best["verdict"] == NO_DIFFERENCE:
        return "none", (
            f"Keep {baseline}: {name} is not shown to be faster or slower{interval_of_side(best)}."
        )
    slower = f"{times(ratio)} times as fast{interval_of_side(best)}"
    return SLOWER, f"Keep {baseline}: {name} is slower, {slower}."


def ends_of(each: ComparedSide) -> list[float] | None:
    """Return the interval of the ratio to the baseline; None if it is unknown."""
    ratio = each["ratio"]
    if ratio is None or ratio["low"] is None or ratio["high"] is None:
        return None
    return [ratio["low"], ratio["high"]]


def _is_wide(each: ComparedSide) -> bool:
    ends = ends_of(each)
    return ends is None or ends[1] > _WIDE * ends[0]


def times(ratio: float) -> str:
    """Return a ratio with three digits."""
    return f"{ratio:.3g}" if ratio < 10 else f"{ratio:,.0f}"


def interval_of_side(each: ComparedSide) -> str:
    """Return the interval of the ratio to the baseline, in parentheses."""
    ends = ends_of(each)
    return "" if ends is None else f" ({times(ends[0])} to {times(ends[1])})"


def format_rounds(rounds: Sequence[int | None] | None) -> str:
    """Return a range of rounds: `12 to 30 rounds`."""
    if rounds is None:
        return "more than 200 rounds"
    fewest, most = rounds
    if most is None:
        return f"{fewest} rounds or many more"
    return format_count(fewest, "round") if fewest == most else f"{fewest} to {most} rounds"


# --- Whether a side is slower than permitted


def check_slowdown(sides: Sequence[Side], most_slowdown: float) -> SlowdownCheck:
    """Ask of each side whether it loses more than permitted; all answers hold together."""
    first, *others = sides
    error = ERROR / len(others)
    names: dict[str, list[str]] = {"fail": [], "pass": [], "cannot tell": []}
    messages = []
    for other in others:
        found = gate_of(
            contrast_with(first, other),
            failed=other.failed,
            runs=len(other.runs) + other.failed,
            margin=most_slowdown,
            error=error,
        )
        names[found.answer].append(other.name)
        messages.append(_gate_message(first, other, found, most_slowdown))
    return {
        "most_slowdown": most_slowdown,
        "slower": names["fail"],
        "not_slower": names["pass"],
        "cannot_tell": names["cannot tell"],
        "messages": messages,
    }


def _gate_message(first: Side, other: Side, found: GateResult, most_slowdown: float) -> str:
    share, ratio, runs = format_share(most_slowdown), found.ratio, len(other.runs) + other.failed
    if found.failed == runs > 0:
        return f"{other.name} fails: none of its {format_count(runs, 'run')} completed"
    if found.answer == "fail":
        return f"{other.name} is slower than the baseline by more than {share}"
    if found.answer == "pass":
        return f"{other.name} is not slower than the baseline by more than {share}"
    undecided = f"undecided whether {other.name} is slower than the baseline by more than {share}"
    if found.failed:
        undecided += f": {found.failed} of its {runs} runs failed, which is no pass"
    if ratio is None or ratio.low is None:
        return f"{undecided}: use at least three runs of each that complete"
    if ratio.low >= 1 - most_slowdown:
        return undecided
    excluded = math.ceil((1 - ratio.low) * 100)
    needed = rounds_from(ratio, first, other, most_slowdown, 2 * found.error)
    decides = f"{format_rounds(needed)} decide if both are equally fast"
    wider = f", or permit more: --fail-if-slower {excluded}%" if excluded < 100 else ""
    return f"{undecided}: {decides}{wider}"

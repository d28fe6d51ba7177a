"""Which is faster, and is that sure? Some sides against the first, the baseline.

Settings of one sweep are compared round by round, over the rounds that both have. Everything else
is compared as independent sets of runs, which cannot tell a difference of settings from a machine
that was slower that day. With several others against one baseline, each interval is widened so
that all of them hold together with 95 % confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analyze.differences import (
    Differences,
    as_sentence,
    changed_settings,
    environment_differences,
)
from stepscope.analyze.figures_of_a_side import Figures, figures_of
from stepscope.analyze.more_rounds import command_for
from stepscope.analyze.node_kinds import NODE
from stepscope.analyze.sides import Side, in_rounds
from stepscope.analyze.throttling import throttled_on_one_side
from stepscope.analyze.throughput import OF_A_SUMMARY
from stepscope.stats import (
    CANNOT_TELL,
    NO_DIFFERENCE,
    Ratio,
    confidence_of_each,
    ratio_of_rounds,
    ratio_of_sets,
    rounds_needed,
    verdict,
)
from stepscope.stats.ratios import Verdict

CONFIDENCE = 0.95  # of everything that one comparison says, together
SOUGHT_SLOWDOWN = 0.05
_USUAL_ROUNDS = 6


@dataclass(frozen=True)
class Against:
    """One side against the baseline; `runs_each` is how often both were run."""

    figures: Figures
    ratio: Ratio | None
    verdict: Verdict
    changed: Differences
    environment_differs: Differences
    runs_each: int
    rounds_needed_for_5_percent: int | None
    warnings: list[str]


@dataclass(frozen=True)
class Comparison:
    """All others against the baseline.

    Where a question stays open, `rounds` would settle it, and `offer` is the command that runs
    them, if there is one.
    """

    baseline: Figures
    others: list[Against]
    confidence_of_each: float
    rounds: int | None
    offer: str | None


def compare(sides: Sequence[Side]) -> Comparison:
    """Compare all sides with the first."""
    baseline, *others = sides
    confidence = confidence_of_each(len(others), CONFIDENCE)
    compared = [_against(baseline, other, confidence) for other in others]
    rounds = max(filter(None, map(_rounds_that_would_tell, compared)), default=None)
    offer = None if rounds is None else command_for(baseline, others, rounds)
    return Comparison(figures_of(baseline), compared, confidence, rounds, offer)


def _rounds_that_would_tell(compared: Against) -> int | None:
    more = compared.runs_each + 1
    if compared.verdict == CANNOT_TELL:
        return max(_USUAL_ROUNDS, more)
    needed = compared.rounds_needed_for_5_percent
    if compared.verdict != NO_DIFFERENCE or needed is None or slowdown_is_excluded(compared):
        return None
    return max(needed, more)


def slowdown_is_excluded(compared: Against) -> bool:
    """Say whether the interval leaves no room for a slowdown of the size that is sought."""
    return slower_than(compared, SOUGHT_SLOWDOWN) is False


def slower_than(compared: Against, most_slowdown: float) -> bool | None:
    """Say whether a side certainly loses more than this share of the baseline's throughput.

    True: the whole interval is below. False: the whole interval is not. None: it cannot be told.
    """
    ratio = compared.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    if ratio.high < 1 - most_slowdown:
        return True
    return False if ratio.low >= 1 - most_slowdown else None


def _against(baseline: Side, other: Side, confidence: float) -> Against:
    ratio = _ratio(baseline, other, confidence)
    noise = ratio.noise if ratio else None
    differs = environment_differences(baseline, other)
    warnings = _warnings_about_both(baseline, other)
    if differs:
        warnings.append(f"ran in another environment: {as_sentence(differs)}")
    return Against(
        figures_of(other),
        ratio,
        verdict(ratio),
        changed_settings(baseline, other),
        differs,
        _runs_each(baseline, other, ratio),
        None if noise is None else rounds_needed(noise, SOUGHT_SLOWDOWN, confidence=confidence),
        warnings,
    )


def _runs_each(baseline: Side, other: Side, ratio: Ratio | None) -> int:
    if ratio is not None and ratio.rounds is not None:
        return ratio.rounds
    return min(len(baseline.runs), len(other.runs))


def _ratio(baseline: Side, other: Side, confidence: float) -> Ratio | None:
    if _on_other_nodes(baseline, other):
        return None
    if not in_rounds(baseline, other):
        return ratio_of_sets(baseline.rates, other.rates, confidence)
    ours, theirs = baseline.rate_by_round, other.rate_by_round
    shared = sorted(ours.keys() & theirs.keys())
    return ratio_of_rounds(
        [ours[each] for each in shared], [theirs[each] for each in shared], confidence
    )


def _on_other_nodes(baseline: Side, other: Side) -> bool:
    """Say whether two settings of a sweep were made on nodes of different kinds."""
    kinds = [(side.values or {}).get(NODE) for side in (baseline, other)]
    return in_rounds(baseline, other) and kinds[0] != kinds[1]


def _warnings_about_both(baseline: Side, other: Side) -> list[str]:
    warnings = []
    if _on_other_nodes(baseline, other):
        warnings.append("was made on another kind of node, so it is not compared")
    paths = [{each.run.path for each in side.runs if each.run} for side in (baseline, other)]
    if paths[0] & paths[1]:
        named = ", ".join(sorted(path.name for path in paths[0] & paths[1]))
        warnings.append(f"shares runs with the baseline, which hides a difference: {named}")
    bases = [{each.basis for each in side.runs} - {OF_A_SUMMARY} for side in (baseline, other)]
    if all(bases) and len(bases[0] | bases[1]) > 1:
        told = [" and ".join(sorted(each)) for each in bases]
        warnings.append(f"throughput is of {told[1]}, the baseline's of {told[0]}")
    runs = [[each.run for each in side.runs if each.run] for side in (baseline, other)]
    if (throttled := throttled_on_one_side(*runs)) is not None:
        warnings.append(throttled)
    if not in_rounds(baseline, other) and min(len(baseline.runs), len(other.runs)) > 1:
        warnings.append(
            "was not run in rounds with the baseline: a machine that was slower meanwhile looks "
            "like a difference"
        )
    return warnings

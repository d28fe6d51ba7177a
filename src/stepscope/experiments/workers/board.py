"""What has been seen of each number of workers, and what follows from it. No trial is made here.

The smallest number is looked for that is tied with the best. It is tied where the interval of the
rounds' ratios says so, or where it hardly waits for data: then more workers have nothing to hide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from stepscope.experiments.workers.candidates import Candidate
from stepscope.stats import Ratio, median, ratio_of_rounds, tie

MOST_SLOWDOWN = 0.03  # a loss of this share of the best's throughput is none


@dataclass(frozen=True)
class Pick:
    """The number to use; decided where the evidence shows that it is tied with the best."""

    candidate: Candidate
    best: Candidate
    to_best: Ratio | None
    decided: bool
    why: str


@dataclass
class Board:
    """Figures of trials, by candidate and round."""

    seen: dict[Candidate, dict[int, dict[str, Any]]] = field(default_factory=dict)
    died: dict[Candidate, str] = field(default_factory=dict)

    def note(self, candidate: Candidate, round_: int, figures: dict[str, Any]) -> None:
        """Take the figures of one trial."""
        self.seen.setdefault(candidate, {})[round_] = figures

    def note_death(self, candidate: Candidate, reason: str) -> None:
        """Leave a candidate out that died: it is no answer, however fast it was before."""
        self.died[candidate] = reason

    @property
    def alive(self) -> list[Candidate]:
        """Those that could be the answer, the smallest number first."""
        return sorted((c for c in self.seen if c not in self.died), key=_size)

    def rates(self, candidate: Candidate) -> list[float]:
        """Return samples a second, one a round."""
        return [figures["steady_samples_per_s"] for figures in self.seen[candidate].values()]

    def mean(self, candidate: Candidate, name: str) -> float | None:
        """Return the middle of a figure over the rounds."""
        known = [f["steady"][name] for f in self.seen[candidate].values() if f["steady"].get(name)]
        return median(known) if known else None

    def wait_share(self, candidate: Candidate) -> float:
        """Return the largest share of its time that a candidate waited for data in any round."""
        steady = [figures["steady"] for figures in self.seen[candidate].values()]
        return max(float(each["data_s"] / each["step_s"]) for each in steady)

    def ratio(self, baseline: Candidate, other: Candidate) -> Ratio | None:
        """Compare two candidates by the rounds that both were in."""
        rounds = sorted(self.seen[baseline].keys() & self.seen[other].keys())
        sides = [
            [self.seen[each][number]["steady_samples_per_s"] for number in rounds]
            for each in (baseline, other)
        ]
        return ratio_of_rounds(sides[0], sides[1])

    @property
    def best(self) -> Candidate:
        """The one with the highest throughput so far; of equals, the smallest number."""
        return max(self.alive, key=lambda each: geometric_mean(self.rates(each)))

    def pick(self) -> Pick:
        """Return the smallest number that is tied with the best, or may be."""
        best = self.best
        for candidate in self.alive:
            to_best = self.ratio(best, candidate)
            if candidate == best:
                why = "it is the fastest, and no smaller number is tied with it"
                return Pick(candidate, best, to_best, self._is_settled(candidate), why)
            if tie(to_best, MOST_SLOWDOWN) == "tied":
                why = "it loses 3 % at most, at its interval's edge"
                return Pick(candidate, best, to_best, True, why)
            if self._hardly_waits(candidate) and tie(to_best, MOST_SLOWDOWN) != "worse":
                share = self.wait_share(candidate)
                why = f"it waits for data {share:.1%} of its time: more have nothing to hide"
                return Pick(candidate, best, to_best, True, why)
            if to_best is not None and to_best.ratio >= 1 - MOST_SLOWDOWN:
                why = "it came within 3 % of the fastest, and the noise hides the rest"
                return Pick(candidate, best, to_best, False, why)
        raise AssertionError("the best is one of those alive")

    def _is_settled(self, best: Candidate) -> bool:
        """Say whether every smaller number was shown to be worse."""
        smaller = [each for each in self.alive if _size(each) < _size(best)]
        return all(tie(self.ratio(best, each), MOST_SLOWDOWN) == "worse" for each in smaller)

    def _hardly_waits(self, candidate: Candidate) -> bool:
        return self.wait_share(candidate) <= MOST_SLOWDOWN

    def still_in(self) -> list[Candidate]:
        """Return those worth another round: not shown to be worse, and of many the better half."""
        best = self.best
        left = [
            each
            for each in self.alive
            if each == best or tie(self.ratio(best, each), MOST_SLOWDOWN) != "worse"
        ]
        half = max(2, -(-len(self.seen) // 2))
        ranked = sorted(left, key=lambda each: -geometric_mean(self.rates(each)))
        kept = {best, self.pick().candidate, *ranked[:half]}
        return [each for each in left if each in kept]


def _size(candidate: Candidate) -> tuple[int, int]:
    """Order by workers; with as many, those that leave torch its threads come first."""
    return candidate.workers, 0 if candidate.threads is None else 1

"""What has been seen of each number of workers, and what follows from it. No trial is made here.

The smallest number is looked for that is tied with the best. It is tied where the interval of the
rounds' ratios says so, or where it hardly waits for data: then more workers have nothing to hide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from stepscope.experiments.workers.candidates import Candidate
from stepscope.stats import Ratio, ratio_of_rounds, tie

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
    """Figures of trials, by candidate and round; who died, and who is out of the running."""

    seen: dict[Candidate, dict[int, dict[str, Any]]] = field(default_factory=dict)
    died: dict[Candidate, str] = field(default_factory=dict)
    out: set[Candidate] = field(default_factory=set)

    def note(self, candidate: Candidate, round_: int, figures: dict[str, Any]) -> None:
        """Take the figures of one trial."""
        self.seen.setdefault(candidate, {})[round_] = figures

    def note_death(self, candidate: Candidate, reason: str) -> None:
        """Leave a candidate out that died: it is no answer, however fast it was before."""
        self.died[candidate] = reason

    @property
    def alive(self) -> list[Candidate]:
        """Those that came to their end every time, the smallest number first."""
        return sorted((c for c in self.seen if c not in self.died), key=lambda each: each.size)

    @property
    def playing(self) -> list[Candidate]:
        """Those that may still be the answer."""
        return [each for each in self.alive if each not in self.out]

    def steady(self, candidate: Candidate) -> list[dict[str, Any]]:
        """Return the mean step of each of its trials."""
        return [figures["steady"] for figures in self.seen.get(candidate, {}).values()]

    def rates(self, candidate: Candidate) -> list[float]:
        """Return samples a second, one a round."""
        return [_rate(figures) for figures in self.seen[candidate].values()]

    def wait_share(self, candidate: Candidate) -> float:
        """Return the largest share of its time that a candidate waited for data in any round."""
        return max(float(each["data_s"] / each["step_s"]) for each in self.steady(candidate))

    def ratio(self, baseline: Candidate, other: Candidate) -> Ratio | None:
        """Compare two candidates by the rounds that both were in."""
        rounds = sorted(self.seen[baseline].keys() & self.seen[other].keys())
        sides = [[_rate(self.seen[each][n]) for n in rounds] for each in (baseline, other)]
        return ratio_of_rounds(sides[0], sides[1])

    @property
    def best(self) -> Candidate:
        """The fastest of those still playing, over the rounds that all of them were in."""
        playing = self.playing
        shared = set.intersection(*(set(self.seen[each]) for each in playing))

        def speed(candidate: Candidate) -> float:
            rounds = shared or set(self.seen[candidate])
            return geometric_mean(_rate(self.seen[candidate][number]) for number in rounds)

        return max(playing, key=speed)

    def pick(self) -> Pick:
        """Return the smallest number that is tied with the best, or may be."""
        best = self.best
        for candidate in self.playing:
            to_best = self.ratio(best, candidate)
            standing = tie(to_best, MOST_SLOWDOWN)
            if candidate == best:
                why = "it is the fastest, and no smaller number is tied with it"
                return Pick(candidate, best, to_best, self._is_settled(candidate), why)
            if standing == "tied":
                why = "it loses 3 % at most, at its interval's edge"
                return Pick(candidate, best, to_best, True, why)
            if self.wait_share(candidate) <= MOST_SLOWDOWN and standing != "worse":
                share = self.wait_share(candidate)
                why = f"it waits for data {share:.1%} of its time: more have nothing to hide"
                return Pick(candidate, best, to_best, True, why)
            if to_best is not None and to_best.ratio >= 1 - MOST_SLOWDOWN:
                why = "it came within 3 % of the fastest, and the noise hides the rest"
                return Pick(candidate, best, to_best, False, why)
        raise AssertionError("the best is one of those playing")

    def _is_settled(self, best: Candidate) -> bool:
        """Say whether every smaller number is out, or was shown to be worse."""
        smaller = [each for each in self.playing if each.size < best.size]
        return all(tie(self.ratio(best, each), MOST_SLOWDOWN) == "worse" for each in smaller)

    def drop_losers(self) -> None:
        """Take those out that were shown to be worse and, of many left, the slower half."""
        best, pick = self.best, self.pick().candidate
        for each in self.playing:
            if each != best and tie(self.ratio(best, each), MOST_SLOWDOWN) == "worse":
                self.out.add(each)
        left = self.playing
        ranked = sorted(left, key=lambda each: -geometric_mean(self.rates(each)))
        kept = {best, pick, *ranked[: max(2, -(-len(left) // 2))]}
        self.out |= {each for each in left if each not in kept}


def _rate(figures: dict[str, Any]) -> float:
    return float(figures["steady_samples_per_s"])

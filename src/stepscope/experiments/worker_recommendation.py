"""Which number of workers to use, from the figures of trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean

from stepscope.analyze.bottleneck_shares import Evidence, bound_by, wait_share
from stepscope.analyze.sweep_summary import mean_step, rate_interval
from stepscope.experiments.worker_candidates import Candidate, Setup
from stepscope.experiments.workload import ScriptWorkload
from stepscope.records.types import StepFigures, TrialMetrics, WorkerCandidate, WorkersAnswer
from stepscope.stats.decide import SLOWER, Ratio, verdict
from stepscope.stats.intervals import interval_of, known_mean
from stepscope.stats.ratios import ratio_of_rounds, tie

MOST_SLOWDOWN = 0.03  # a smaller loss of throughput than this does not count


@dataclass(frozen=True)
class Pick:
    """The number to use; `decided` if the rounds prove that it is tied with the best."""

    candidate: Candidate
    best: Candidate
    to_best: Ratio | None
    decided: bool
    why: str


@dataclass
class Board:
    """The figures of trials by candidate and round.

    Candidates that died are no answer, however fast they were; those in `out` were dropped.
    """

    seen: dict[Candidate, dict[int, TrialMetrics]] = field(default_factory=dict)
    died: dict[Candidate, str] = field(default_factory=dict)
    out: set[Candidate] = field(default_factory=set)

    def note(self, candidate: Candidate, round_: int, figures: TrialMetrics) -> None:
        """Add the figures of one trial."""
        self.seen.setdefault(candidate, {})[round_] = figures

    @property
    def alive(self) -> list[Candidate]:
        """Candidates whose trials all completed, the smallest number first."""
        return sorted((c for c in self.seen if c not in self.died), key=lambda each: each.size)

    @property
    def playing(self) -> list[Candidate]:
        """The candidates that may still be the answer."""
        return [each for each in self.alive if each not in self.out]

    def steady(self, candidate: Candidate) -> list[StepFigures]:
        """Return the mean step of each of its trials."""
        return [figures["steady"] for figures in self.seen.get(candidate, {}).values()]

    def rates(self, candidate: Candidate) -> list[float]:
        """Return the samples per second of each round."""
        return [rate_of(figures) for figures in self.seen[candidate].values()]

    def wait_share(self, candidate: Candidate) -> float:
        """Return the largest share of time waiting for data in any round."""
        return max(wait_share(each) for each in self.steady(candidate))

    def ratio(self, baseline: Candidate, other: Candidate) -> Ratio | None:
        """Compare two candidates by the rounds that both were in."""
        rounds = sorted(self.seen[baseline].keys() & self.seen[other].keys())
        sides = [[rate_of(self.seen[each][n]) for n in rounds] for each in (baseline, other)]
        return ratio_of_rounds(sides[0], sides[1])

    @property
    def best(self) -> Candidate:
        """The fastest candidate, over the rounds that all of them were in."""
        playing = self.playing
        shared = set.intersection(*(set(self.seen[each]) for each in playing))

        def speed(candidate: Candidate) -> float:
            rounds = shared or set(self.seen[candidate])
            return geometric_mean(rate_of(self.seen[candidate][number]) for number in rounds)

        return max(playing, key=speed)

    def pick(self) -> Pick:
        """Return the smallest number that is tied, or may be tied, with the best."""
        best = self.best
        for candidate in self.playing:
            to_best = self.ratio(best, candidate)
            standing = tie(to_best, MOST_SLOWDOWN)
            if candidate == best:
                smaller = [each for each in self.playing if each.size < best.size]
                ties = [tie(self.ratio(best, each), MOST_SLOWDOWN) for each in smaller]
                decided = all(each == "worse" for each in ties)
                why = "it is the fastest, and no smaller number is as fast"
                return Pick(candidate, best, to_best, decided, why)
            if standing == "tied":
                why = "it is at most 3 % slower than the fastest (95 % interval)"
                return Pick(candidate, best, to_best, True, why)
            if self.wait_share(candidate) <= MOST_SLOWDOWN and standing != "worse":
                share = self.wait_share(candidate)
                why = f"only {share:.1%} of its time waits for data, so more cannot help"
                return Pick(candidate, best, to_best, True, why)
            if to_best is not None and to_best.ratio >= 1 - MOST_SLOWDOWN:
                why = "it came within 3 % of the fastest, and noise hides the difference"
                return Pick(candidate, best, to_best, False, why)
        raise AssertionError("the best is one of those playing")

    def drop_losers(self) -> None:
        """Drop the candidates that are proven worse and, of many left, the slower half."""
        best, pick = self.best, self.pick().candidate
        for each in self.playing:
            if each != best and tie(self.ratio(best, each), MOST_SLOWDOWN) == "worse":
                self.out.add(each)
        left = self.playing
        ranked = sorted(left, key=lambda each: -geometric_mean(self.rates(each)))
        kept = {best, pick, *ranked[: max(2, -(-len(left) // 2))]}
        self.out |= {each for each in left if each not in kept}


def rate_of(figures: TrialMetrics) -> float:
    """Return the samples per second of a trial with a result."""
    rate = figures["steady_samples_per_s"]
    assert rate is not None, "a trial without a rate is no result"
    return rate


_SLOWER = "{} looked faster, but the current setting won the verification"


@dataclass(frozen=True)
class WorkerRecommendation:
    """The pick, its verification, and the trials behind it."""

    setup: Setup
    board: Board
    pick: Pick
    verified: Ratio | None
    from_memory: StepFigures | None
    cost_s: float

    @property
    def recommended(self) -> Candidate:
        """The pick, unless the current setting won the verification."""
        return self.setup.current if verdict(self.verified) == SLOWER else self.pick.candidate

    def to_json(self, path: Path) -> WorkersAnswer:
        """Return it as plain values, with the folder of the trials."""
        bound, bound_why = self._bound_by(self.setup.current)
        after, _ = self._bound_by(self.recommended)
        ratio, was_slower = self.verified, verdict(self.verified) == SLOWER
        others = [each for each in self.board.died if each not in self.board.seen]
        return {
            "recommended": self.recommended.workers,
            "recommended_threads": self.recommended.threads,
            "current": self.setup.current.workers,
            "decided": self.pick.decided,
            "why": _SLOWER.format(self.pick.candidate) if was_slower else self.pick.why,
            "bound_by": bound,
            "bound_by_why": bound_why,
            "bound_by_with_recommended": after,
            "candidates": [
                self._row(each)
                for each in [*sorted(self.board.seen, key=lambda each: each.size), *others]
            ],
            "verified_speedup": None if ratio is None else ratio.ratio,
            "verified": {
                "ratio": None if ratio is None else ratio.ratio,
                "low": None if ratio is None else ratio.low,
                "high": None if ratio is None else ratio.high,
                "rounds": None if ratio is None else ratio.rounds,
                "verdict": verdict(ratio),
                "reason": self._not_verified(),
            },
            "bounds": self.setup.bounds.to_json(),
            "of_script": isinstance(self.setup.workload, ScriptWorkload),
            "warnings": list(self.setup.warnings),
            "steps_an_epoch": self.setup.steps_an_epoch,
            "measured_steps": max(
                sum(each["steady_steps"] for each in seen.values())
                for seen in self.board.seen.values()
            ),
            "cost_s": self.cost_s,
            "path": str(path),
        }

    def _not_verified(self) -> str | None:
        current = self.setup.current
        if self.verified is not None:
            return None
        if self.pick.candidate == current:
            return "the current number is the one to use, so there was nothing to compare"
        return f"the current number gave no result: {self.board.died.get(current, 'not tried')}"

    def _bound_by(self, candidate: Candidate) -> tuple[str, str]:
        steady = self.board.steady(candidate)
        if not steady:
            why = self.board.died.get(candidate, "not tried")
            return "unclear", f"{candidate} gave no result: {why}"
        alone = self.board.steady(Candidate(0))
        seen = list(self.board.seen[candidate].values())
        return bound_by(
            Evidence(
                mean_step(steady),
                candidate.workers,
                self.setup.bounds.cpus,
                alone=mean_step(alone) if alone else None,
                from_memory=self.from_memory,
                reads_files=self.setup.reads_files,
                read_bytes_per_s=known_mean([each.get("read_bytes_per_s") for each in seen]),
            )
        )

    def _row(self, candidate: Candidate) -> WorkerCandidate:
        seen = list(self.board.seen.get(candidate, {}).values())
        died = self.board.died.get(candidate)
        rates = self.board.rates(candidate) if seen else []
        peaks = [peak for figures in seen if (peak := figures.get("peak_memory_bytes"))]
        to_best = self.board.ratio(self.pick.best, candidate) if seen else None
        standing = tie(to_best, MOST_SLOWDOWN)
        is_picked = candidate in (
            self.pick.best,
            self.pick.candidate if self.pick.decided else None,
        )
        steady = mean_step(figures["steady"] for figures in seen)
        starts = [figures.get("loader_start_s") for figures in seen]
        return {
            "workers": candidate.workers,
            "threads": candidate.threads,
            "samples_per_s": rate_interval(interval_of(rates) if rates else None),
            "tied_with_best": died is None and (is_picked or standing == "tied"),
            "to_best": None if to_best is None else to_best.ratio,
            "rounds": len(seen),
            "wait_share": self.board.wait_share(candidate) if seen else None,
            "load_s": steady["load_s"],
            "load_cpu_s": steady["load_cpu_s"],
            "loader_start_s": known_mean(starts),
            "pressure_cpu": known_mean([figures.get("pressure_cpu") for figures in seen]),
            "pressure_io": known_mean([figures.get("pressure_io") for figures in seen]),
            "memory_bytes": max(peaks, default=None),
            "reason": died,
        }

"""The trials that find the number of workers, and the answer that follows from them.

round 1      every candidate, the smallest first: what a worker takes bounds the larger ones
more rounds  those that may still be the answer, in random order, until one is shown to be
verify       the pick against what is set now, in rounds of their own
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.analyze.bound_by import Evidence, bound_by, compute_s
from stepscope.errors import AnswerIsNo
from stepscope.experiments.subjects import OwnScript
from stepscope.experiments.sweep.execute import Bench
from stepscope.experiments.workers.board import MOST_SLOWDOWN, Board, Pick
from stepscope.experiments.workers.candidates import Candidate, first_candidates, next_larger
from stepscope.experiments.workers.setup import Setup
from stepscope.records import schema
from stepscope.records.sweep import Trial
from stepscope.stats import SLOWER, Ratio, interval_of, ratio_of_rounds, tie, verdict

_CLEARLY_FASTER = 1.1  # then a still larger number is worth a trial
_VERIFYING = 1001  # rounds of trials that are not for choosing have numbers of their own
_FROM_MEMORY = 2001
_SLOWED = 1.1  # how much slower the network is beside workers before fewer threads are tried


@dataclass
class Search:
    """Trials of one training's workers."""

    bench: Bench
    setup: Setup
    board: Board = field(default_factory=Board)
    from_memory: dict[str, Any] | None = None
    chance: random.Random = field(default_factory=random.Random)
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> Answer:
        """Choose, verify, and say what binds.

        Raises:
            AnswerIsNo: no number of workers came to its end.
        """
        self._first_round()
        for number in range(2, self.setup.budget.rounds + 1):
            if number > 2 and self.board.pick().decided:
                break
            candidates = self.board.still_in()
            self.chance.shuffle(candidates)
            self._round(number, candidates)
        pick = self.board.pick()
        verified = self._verify(pick.candidate)
        self._look_at_memory()
        return Answer(
            self.setup, self.board, pick, verified, self.from_memory, time.monotonic() - self._began
        )

    def _first_round(self) -> None:
        for candidate in first_candidates(self.setup.bounds, self.setup.current.workers):
            if self._fits(candidate):
                self._try(1, candidate)
        if not self.board.alive:
            raise AnswerIsNo("; ".join(f"{c}: {why}" for c, why in self.board.died.items()))
        self._try_larger()
        for candidate in list(self.board.alive):
            if self._competes(candidate):
                threads = max(1, self.setup.bounds.cpus - candidate.workers)
                self._try(1, replace(candidate, threads=threads))

    def _fits(self, candidate: Candidate) -> bool:
        """Look whether there is memory for so many, by what one of them was seen to take."""
        taken = [
            figures["worker_bytes"]
            for seen in self.board.seen.values()
            for figures in seen.values()
            if figures.get("worker_bytes")
        ]
        if taken:
            bounds = replace(self.setup.bounds, worker_bytes=max(taken))
            self.setup = replace(self.setup, bounds=bounds)
        most = self.setup.bounds.most(mostly_waiting=True)
        return candidate.workers <= most or candidate == self.setup.current

    def _try_larger(self) -> None:
        """Go on to larger numbers while they help and mostly wait for something that is no CPU."""
        while True:
            best = self.board.best
            smaller = [c for c in self.board.alive if c.workers < best.workers]
            if best.workers != max(c.workers for c in self.board.alive) or not smaller:
                return
            gain = self.board.ratio(smaller[-1], best)
            load_s, cpu_s = (self.board.mean(best, name) for name in ("load_s", "load_cpu_s"))
            larger = next_larger(best.workers, self.setup.bounds, load_s, cpu_s)
            if larger is None or gain is None or gain.ratio < _CLEARLY_FASTER:
                return
            self._try(1, larger)
            if larger in self.board.died:
                return

    def _competes(self, candidate: Candidate) -> bool:
        """Say whether workers and compute threads fight for the CPUs, so that fewer may help."""
        alone = self.board.seen.get(Candidate(0))
        cpus = self.setup.bounds.cpus
        if not self.setup.shares_cpus or candidate.workers == 0 or cpus == 1 or not alone:
            return False
        beside_s = compute_s(self.board.seen[candidate][1]["steady"])
        alone_s = compute_s(alone[1]["steady"])
        return bool(beside_s and alone_s and beside_s > _SLOWED * alone_s)

    def _round(self, number: int, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._try(number, candidate)

    def _try(self, number: int, candidate: Candidate) -> Trial:
        values = self.setup.values(candidate, self.setup.budget.steps)
        trial = self.bench.add(values, number)
        if trial.status != schema.COMPLETED:
            self.board.note_death(candidate, trial.reason or trial.status)
        elif not trial.metrics.get("steady_samples_per_s"):
            self.board.note_death(candidate, "too few steps: its buffers hold all that was loaded")
        else:
            self.board.note(candidate, number, trial.metrics)
        return trial

    def _verify(self, pick: Candidate) -> Ratio | None:
        """Run the pick and what is set now in turn; None where they are the same."""
        current = self.setup.current
        if pick == current or current in self.board.died:
            return None
        rates: dict[Candidate, list[float]] = {pick: [], current: []}
        for number in range(self.setup.budget.verifying_rounds):
            both = [pick, current]
            self.chance.shuffle(both)
            seen = {each: self._rate_of(each, _VERIFYING + number) for each in both}
            if all(seen.values()):  # a round counts where both came to their end
                for each in both:
                    rates[each].append(seen[each])
        return ratio_of_rounds(rates[current], rates[pick])

    def _rate_of(self, candidate: Candidate, number: int) -> float:
        """Make a trial and return its throughput; 0 where it did not come to its end."""
        values = self.setup.values(candidate, self.setup.budget.verifying_steps)
        trial = self.bench.add(values, number)
        return float(trial.metrics.get("steady_samples_per_s") or 0.0)

    def _look_at_memory(self) -> None:
        """Where samples come from files, look how long batches take from memory, to tell apart."""
        current = self.setup.current
        if not self.setup.reads_files or current in self.board.died:
            return
        values = {
            **self.setup.values(current, self.setup.budget.steps),
            "source": "memory",
            "source_delay_ms": 0.0,
        }
        trial = self.bench.add({**values, "page_cache": "keep"}, _FROM_MEMORY)
        self.from_memory = trial.metrics.get("steady")


@dataclass(frozen=True)
class Answer:
    """Which number to use, and all that carries it."""

    setup: Setup
    board: Board
    pick: Pick
    verified: Ratio | None
    from_memory: dict[str, Any] | None
    cost_s: float

    @property
    def recommended(self) -> Candidate:
        """The pick, unless the verification showed that what is set now is faster."""
        return self.setup.current if verdict(self.verified) == SLOWER else self.pick.candidate

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        bound, bound_why = self._bound_by(self.setup.current)
        after, _ = self._bound_by(self.recommended)
        verified = self.verified
        return {
            "recommended": self.recommended.workers,
            "recommended_threads": self.recommended.threads,
            "current": self.setup.current.workers,
            "decided": self.pick.decided,
            "why": self._why(),
            "bound_by": bound,
            "bound_by_why": bound_why,
            "bound_by_with_recommended": after,
            "candidates": [self._row(each) for each in [*self.board.alive, *self.board.died]],
            "verified_speedup": None if verified is None else verified.ratio,
            "verified": {
                "ratio": None if verified is None else verified.ratio,
                "low": None if verified is None else verified.low,
                "high": None if verified is None else verified.high,
                "rounds": None if verified is None else verified.rounds,
                "verdict": verdict(verified),
                "reason": self._not_verified(),
            },
            "bounds": self.setup.bounds.to_json(),
            "of_script": isinstance(self.setup.subject, OwnScript),
            "steps_an_epoch": self.setup.steps_an_epoch,
            "measured_steps": self.setup.budget.steps_in_all,
            "cost_s": self.cost_s,
        }

    def _not_verified(self) -> str | None:
        if self.verified is not None:
            return None
        if self.pick.candidate == self.setup.current:
            return "what is set now is the number to use: there was nothing to compare it with"
        return "what is set now did not come to its end"

    def _why(self) -> str:
        if verdict(self.verified) == SLOWER:
            return (
                f"{self.pick.candidate} looked better, but the verification showed what is set now "
                "to be faster"
            )
        return self.pick.why

    def _bound_by(self, candidate: Candidate) -> tuple[str, str]:
        if candidate not in self.board.seen:
            return "unclear", "what is set now did not come to its end"
        seen = list(self.board.seen[candidate].values())
        alone = self.board.seen.get(Candidate(0), {})
        return bound_by(
            Evidence(
                mean_of([figures["steady"] for figures in seen]),
                candidate.workers,
                self.setup.bounds.cpus,
                alone=mean_of([figures["steady"] for figures in alone.values()]) or None,
                from_memory=self.from_memory,
                machine=seen[0],
            )
        )

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        row: dict[str, Any] = {"workers": candidate.workers, "threads": candidate.threads}
        seen = list(self.board.seen.get(candidate, {}).values())
        if not seen or candidate in self.board.died:
            nothing = dict.fromkeys(("median", "low", "high"))
            reason = self.board.died.get(candidate)
            return {**row, "samples_per_s": nothing, "tied_with_best": False, "reason": reason}
        to_best = self.board.ratio(self.pick.best, candidate)
        by_wait = candidate == self.pick.candidate and self.pick.decided
        steady = mean_of([figures["steady"] for figures in seen])
        return {
            **row,
            "samples_per_s": interval_of(self.board.rates(candidate))._asdict(),
            "tied_with_best": candidate == self.pick.best
            or by_wait
            or tie(to_best, MOST_SLOWDOWN) == "tied",
            "to_best": None if to_best is None else to_best.ratio,
            "rounds": len(seen),
            "wait_share": self.board.wait_share(candidate),
            "load_s": steady.get("load_s"),
            "load_cpu_s": steady.get("load_cpu_s"),
            "loader_start_s": seen[0].get("loader_start_s"),
            "pressure_cpu": seen[0].get("pressure_cpu"),
            "memory_bytes": max(
                (figures["peak_memory_bytes"] for figures in seen if figures["peak_memory_bytes"]),
                default=None,
            ),
            "reason": None,
        }


def mean_of(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of figures by name, over those in which they are known."""
    names = dict.fromkeys(name for each in figures for name in each)
    known = {name: [each[name] for each in figures if each.get(name) is not None] for name in names}
    return {name: sum(values) / len(values) if values else None for name, values in known.items()}

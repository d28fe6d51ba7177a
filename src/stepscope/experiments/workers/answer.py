"""The number of workers to use, and all that carries it, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.analyze.bound_by import Evidence, bound_by
from stepscope.analyze.trial_metrics import mean_figures
from stepscope.experiments.subjects import OwnScript
from stepscope.experiments.workers.board import MOST_SLOWDOWN, Board, Pick
from stepscope.experiments.workers.candidates import Candidate
from stepscope.experiments.workers.setup import Setup
from stepscope.stats import SLOWER, Interval, Ratio, interval_of, known_mean, tie, verdict


@dataclass(frozen=True)
class Answer:
    """What was set up, seen, picked and verified."""

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
        ratio = self.verified
        others = [each for each in self.board.died if each not in self.board.seen]
        return {
            "recommended": self.recommended.workers,
            "recommended_threads": self.recommended.threads,
            "current": self.setup.current.workers,
            "decided": self.pick.decided,
            "why": self._why(),
            "bound_by": bound,
            "bound_by_why": bound_why,
            "bound_by_with_recommended": after,
            "candidates": [
                self._row(each)
                for each in [*sorted(self.board.seen, key=lambda each: each.size), *others]
            ],
            "verified_speedup": None if ratio is None else ratio.ratio,
            "verified": {
                **{
                    name: None if ratio is None else getattr(ratio, name)
                    for name in ("ratio", "low", "high", "rounds")
                },
                "verdict": verdict(ratio),
                "reason": self._not_verified(),
            },
            "bounds": self.setup.bounds.to_json(),
            "of_script": isinstance(self.setup.subject, OwnScript),
            "warnings": list(self.setup.warnings),
            "steps_an_epoch": self.setup.steps_an_epoch,
            "measured_steps": max(map(self._measured_steps, self.board.seen)),
            "cost_s": self.cost_s,
        }

    def _measured_steps(self, candidate: Candidate) -> int:
        return sum(seen["steady_steps"] for seen in self.board.seen[candidate].values())

    def _not_verified(self) -> str | None:
        current = self.setup.current
        if self.verified is not None:
            return None
        if self.pick.candidate == current:
            return "what is set now is the number to use: there was nothing to compare it with"
        return f"what is set now gave no result: {self.board.died.get(current, 'not tried')}"

    def _why(self) -> str:
        if verdict(self.verified) == SLOWER:
            return (
                f"{self.pick.candidate} looked better, but the verification showed what is set now "
                "to be faster"
            )
        return self.pick.why

    def _bound_by(self, candidate: Candidate) -> tuple[str, str]:
        steady = self.board.steady(candidate)
        if not steady:
            why = self.board.died.get(candidate, "not tried")
            return "unclear", f"{candidate} gave no result: {why}"
        alone = self.board.steady(Candidate(0))
        seen = list(self.board.seen[candidate].values())
        return bound_by(
            Evidence(
                mean_figures(steady),
                candidate.workers,
                self.setup.bounds.cpus,
                alone=mean_figures(alone) if alone else None,
                from_memory=self.from_memory,
                reads_files=self.setup.reads_files,
                read_bytes_per_s=known_mean([each.get("read_bytes_per_s") for each in seen]),
            )
        )

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        seen = list(self.board.seen.get(candidate, {}).values())
        died = self.board.died.get(candidate)
        rates = self.board.rates(candidate) if seen else []
        to_best = self.board.ratio(self.pick.best, candidate) if seen else None
        steady = mean_figures([figures["steady"] for figures in seen])
        starts = [figures.get("loader_start_s") for figures in seen]
        return {
            "workers": candidate.workers,
            "threads": candidate.threads,
            "samples_per_s": (interval_of(rates) if rates else Interval(*_NOTHING))._asdict(),
            "tied_with_best": died is None and self._is_tied(candidate, to_best),
            "to_best": None if to_best is None else to_best.ratio,
            "rounds": len(seen),
            "wait_share": self.board.wait_share(candidate) if seen else None,
            "load_s": steady.get("load_s"),
            "load_cpu_s": steady.get("load_cpu_s"),
            "loader_start_s": known_mean(starts),
            "pressure_cpu": known_mean([figures.get("pressure_cpu") for figures in seen]),
            "pressure_io": known_mean([figures.get("pressure_io") for figures in seen]),
            "memory_bytes": max(
                (f["peak_memory_bytes"] for f in seen if f.get("peak_memory_bytes")), default=None
            ),
            "reason": died,
        }

    def _is_tied(self, candidate: Candidate, to_best: Ratio | None) -> bool:
        if candidate == self.pick.best or (candidate == self.pick.candidate and self.pick.decided):
            return True
        return tie(to_best, MOST_SLOWDOWN) == "tied"


_NOTHING: tuple[Any, ...] = (None, None, None)

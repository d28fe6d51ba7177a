"""Which number of workers to use, from the figures of trials; `stats.decide` decides."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

from stepscope.analyze.bottleneck_shares import Evidence, bound_by, wait_share
from stepscope.analyze.sweep_summary import mean_step, rate_interval
from stepscope.experiments.script_loaders import line_with_workers
from stepscope.experiments.worker_candidates import Candidate, Setup
from stepscope.experiments.workload import ScriptWorkload
from stepscope.records.types import StepFigures, TrialMetrics, WorkerCandidate, WorkersAnswer
from stepscope.stats.decide import (
    CANNOT_TELL,
    ERROR,
    FASTER,
    MARGIN,
    GateResult,
    Race,
    Ratio,
    contrast,
    family,
    gate,
    race,
    rounds_for,
    verdict,
)
from stepscope.stats.intervals import FEWEST_ROUNDS, interval_of, known_mean
from stepscope.supervisor.script_child import hide_secrets
from stepscope.units import format_bytes, format_count, format_share

_MOST_TO_CONFIRM = 6  # rounds


@dataclass
class Board:
    """The figures of trials by round; `rate` gives the samples per second of one.

    Candidates that died are no answer, however fast they were. Rounds that other programs
    disturbed decide nothing.
    """

    rate: Callable[[TrialMetrics], float | None]
    rounds: list[dict[Candidate, TrialMetrics]] = field(default_factory=list)
    disturbed: list[dict[Candidate, TrialMetrics]] = field(default_factory=list)
    died: dict[Candidate, str] = field(default_factory=dict)

    def tried(self) -> list[Candidate]:
        """Return the candidates that have a result, the smallest number first."""
        seen = {each for found in [*self.rounds, *self.disturbed] for each in found}
        return sorted(seen, key=lambda each: each.size)

    def tried_alive(self) -> list[Candidate]:
        """Return the candidates that had a result in every trial so far."""
        return [each for each in self.tried() if each not in self.died]

    def seen(self, candidate: Candidate) -> list[TrialMetrics]:
        """Return the figures of its trials; of disturbed ones only if there are no others."""
        of_each = [
            [found[candidate] for found in rounds if candidate in found]
            for rounds in (self.rounds, self.disturbed)
        ]
        return of_each[0] or of_each[1]

    def steady(self, candidate: Candidate) -> list[StepFigures]:
        """Return the mean step of each of its trials."""
        return [figures["steady"] for figures in self.seen(candidate)]

    def rates_in(
        self, rounds: Sequence[dict[Candidate, TrialMetrics]], *several: Candidate
    ) -> list[list[float]]:
        """Return the samples per second of candidates in rounds, in those that they were in."""
        return [
            [rate for found in rounds if each in found and (rate := self.rate(found[each]))]
            for each in several
        ]

    def ratio(self, baseline: Candidate, other: Candidate) -> Ratio | None:
        """Compare two candidates by the rounds that both were in."""
        rates, others = self.rates_in(self.rounds, baseline, other)
        return contrast(rates, others)

    def race(self, current: Candidate, look: int, looks: int) -> Race[Candidate] | None:
        """Choose among the candidates that live, by the undisturbed rounds."""
        alive = self.tried_alive()
        rates = dict(zip(alive, self.rates_in(self.rounds, *alive), strict=True))
        return race(rates, current, look=look, looks=looks)

    def waits_for_nothing(
        self, current: Candidate, now: Race[Candidate], look: int, looks: int
    ) -> bool:
        """Return whether no other number can help: the current one hardly waits for data.

        Its network must not be slower than beside another number of workers either.
        """
        if now.pick != current or self.wait_share(current) > MARGIN:
            return False
        others = [each for each in now.racing if each != current]
        return all(
            gate(
                self._compute_rates(each),
                self._compute_rates(current),
                error=ERROR / len(others),
                look=look,
                looks=looks,
            ).answer
            == "pass"
            for each in others
        )

    def wait_share(self, candidate: Candidate) -> float:
        """Return the largest share of time waiting for data in any round."""
        return max(wait_share(each) for each in self.steady(candidate))

    def _compute_rates(self, candidate: Candidate) -> list[float]:
        """Return the steps per second, without waits for data, of each round."""
        return [
            1 / ((each["step_s"] or 0.0) - (each["data_s"] or 0.0))
            for each in self.steady(candidate)
            if (each["step_s"] or 0.0) > (each["data_s"] or 0.0)
        ]


def rounds_to_confirm(ratio: Ratio | None) -> int:
    """Return how many fresh rounds show a pick to be no slower, given the rounds that chose it."""
    if ratio is None or ratio.noise is None or not ratio.rounds:
        return _MOST_TO_CONFIRM
    to_show = 1 - (1 - MARGIN) / max(1.0, ratio.ratio)
    needed = rounds_for(ratio.noise, ratio.rounds, to_show, error=2 * ERROR)
    most = needed[1] if needed else None
    return min(_MOST_TO_CONFIRM, most or _MOST_TO_CONFIRM)


@dataclass(frozen=True)
class Confirmation:
    """The pick against the current setting in fresh rounds."""

    gate: GateResult
    ratio: Ratio | None

    @classmethod
    def of(cls, current: Sequence[float], pick: Sequence[float]) -> Confirmation:
        """Decide by the rates of the current setting and of the pick."""
        return cls(gate(current, pick), contrast(current, pick))


@dataclass(frozen=True)
class WorkerRecommendation:
    """What the race and the fresh rounds came to, and the trials behind it.

    The race is None if other programs disturbed too many rounds.
    """

    setup: Setup
    board: Board
    race: Race[Candidate] | None
    confirmed: Confirmation | None
    waits_for_nothing: bool
    from_memory: StepFigures | None
    cost_s: float

    @property
    def recommended(self) -> Candidate:
        """The pick if fresh rounds show that it is not slower, else the current setting."""
        current = self.setup.current
        if self.race is None:
            return current
        if current in self.board.died:
            return self.race.pick
        passed = self.confirmed is not None and self.confirmed.gate.answer == "pass"
        return self.race.pick if passed else current

    @property
    def decided(self) -> bool:
        """Whether the rounds show what is recommended."""
        if self.race is None:
            return False
        if self.confirmed is not None:
            return self.confirmed.gate.answer != "cannot tell"
        alone = self.race.pick == self.recommended and self.race.shown
        return alone or self.waits_for_nothing

    def to_json(self, path: Path) -> WorkersAnswer:
        """Return it as plain values, with the folder of the trials."""
        bound, bound_why = self._bound_by(self.setup.current)
        after, _ = self._bound_by(self.recommended)
        ratio = self.confirmed.ratio if self.confirmed else None
        others = [each for each in self.board.died if each not in self.board.tried()]
        why = " ".join(self._why())
        return {
            "recommended": self.recommended.workers,
            "recommended_threads": self.recommended.threads,
            "current": self.setup.current.workers,
            "decided": self.decided,
            "why": why,
            "text": self._text(why),
            "change": self._change(),
            "bound_by": bound,
            "bound_by_why": bound_why,
            "bound_by_with_recommended": after,
            "candidates": [self._row(each) for each in [*self.board.tried(), *others]],
            "verified_speedup": None if ratio is None else ratio.ratio,
            "verified": {
                "ratio": None if ratio is None else ratio.ratio,
                "low": None if ratio is None else ratio.low,
                "high": None if ratio is None else ratio.high,
                "rounds": None if ratio is None else ratio.rounds,
                "verdict": verdict(ratio),
                "reason": self._not_confirmed(),
            },
            "disturbed_rounds": len(self.board.disturbed),
            "bounds": self.setup.bounds.to_json(),
            "of_script": isinstance(self.setup.workload, ScriptWorkload),
            "warnings": list(self.setup.warnings),
            "steps_an_epoch": self.setup.steps_an_epoch,
            "measured_steps": max(
                (
                    sum(each["steady_steps"] for each in self.board.seen(candidate))
                    for candidate in self.board.tried()
                ),
                default=0,
            ),
            "cost_s": self.cost_s,
            "path": str(path),
        }

    # --- The answer in words

    def _text(self, why: str) -> str:
        if not self.decided:
            return f"Undecided: {why}"
        verb = "Keep" if self.recommended == self.setup.current else "Use"
        return f"{verb} {self._named(self.recommended)}: {why}"

    def _why(self) -> Iterator[str]:
        current, now = self.setup.current, self.race
        keep = f"Keep {self._named(current)}"
        if now is None:
            used = [
                share
                for found in self.board.disturbed
                for figures in found.values()
                if figures.get("disturbed") and (share := figures.get("others_cpu_share"))
            ]
            yield (
                f"other programs used {fmean(used):.0%} of the CPU while this ran, so the timings "
                f"cannot be trusted. {keep}, or repeat on a quiet machine."
            ).replace("%", " %")
            return
        if current in self.board.died:
            yield f"with {current} the training failed: {self.board.died[current]}."
            if not self.decided:
                yield f"{self._named(now.pick)} was the fastest, but noise hides the difference."
        elif self.confirmed is not None:
            yield from self._why_confirmed(now.pick, self.confirmed, keep)
        elif self.waits_for_nothing:
            waits = format_share(self.board.wait_share(current))
            yield f"at most {waits} of its time waits for data, so other numbers cannot help."
        elif now.pick != current:
            yield f"{now.pick} looked faster, but was not confirmed in undisturbed rounds. {keep}."
        elif now.shown:
            yield f"no other number is more than {MARGIN:.0%} faster.".replace("%", " %")
        else:
            yield from self._why_undecided(now, keep)
        limit = self.setup.bounds.what_limits
        if limit is not None and now.leader.workers >= self.setup.bounds.most:
            yield f"More than {format_count(now.leader.workers, 'worker')} were not tried: {limit}."

    def _why_confirmed(self, pick: Candidate, confirmed: Confirmation, keep: str) -> Iterator[str]:
        current, answer = self.setup.current, confirmed.gate.answer
        times = _times(confirmed.ratio)
        rounds = format_count(confirmed.ratio.rounds or 0, "fresh round") if confirmed.ratio else ""
        if answer == "pass":
            how = "faster than" if verdict(confirmed.ratio) == FASTER else "the throughput of"
            times = times.replace(" (", f" {how} {_short(current)} (", 1)
            yield f"{times}, proven in {rounds}."
            yield from self._larger_ones(pick)
        elif answer == "fail":
            yield f"{_short(pick)} looked faster, but in {rounds} it is slower: {times}."
        else:
            yield (
                f"{_short(pick)} looked faster, but {rounds} do not show that it is not slower: "
                f"{times}. {keep}, or repeat on a quieter machine."
            )

    def _larger_ones(self, pick: Candidate) -> Iterator[str]:
        """Yield what is known of the larger numbers that the race did not show to be slower."""
        assert self.race is not None, "only a race has a pick"
        larger = [each for each in self.race.racing if each.size > pick.size]
        rates = self.board.rates_in(self.board.rounds, pick, *larger)
        found = family([partial(contrast, rates[0], each) for each in rates[1:]])
        for each, compared in zip(larger, found, strict=True):
            if compared.verdict == CANNOT_TELL or compared.ratio is None:
                continue
            how = "not measurably faster"
            if compared.verdict == FASTER:
                how = f"{_times(compared.ratio)} faster"
            more_bytes = (self._memory(each) or 0) - (self._memory(pick) or 0)
            known = self._memory(each) and self._memory(pick) and more_bytes > 0
            takes = f" and takes {format_bytes(more_bytes)} more" if known else ""
            yield f"{_short(each)} is {how}{takes}."

    def _why_undecided(self, now: Race[Candidate], keep: str) -> Iterator[str]:
        current = self.setup.current
        other = now.leader
        if other == current:
            rest = [each for each in now.racing if each != current]
            other = max(rest, key=lambda each: ratio.ratio if (ratio := now.to_leader[each]) else 0)
        found = self.board.ratio(current, other)
        yield (
            f"{_short(other)} runs at {_times(found)} the speed of {_short(current)}, and noise "
            f"hides whether the difference is more than {MARGIN:.0%}".replace("%", " %")
            + f". {keep}."
        )
        needed = None
        if found is not None and found.noise is not None:
            needed = rounds_for(found.noise, found.rounds or FEWEST_ROUNDS, MARGIN)
        if needed is None:
            return
        fewest, most = needed
        rounds = f"{fewest} rounds" if fewest == most else f"{fewest} to {most} rounds"
        rounds = rounds if most else f"{fewest} rounds or more"
        command = "stepscope sweep --over workers="
        command += f"{current.workers},{other.workers} --repeats {fewest}"
        if isinstance(self.setup.workload, ScriptWorkload):
            request = self.setup.workload.request
            command += f" -- {shlex.join([*request.target, *hide_secrets(request.arguments)])}"
        if other.threads is None and other.workers != current.workers:
            yield f"About {rounds} would tell: {command}"

    def _named(self, candidate: Candidate) -> str:
        """Return how the setting is written where it is set."""
        if isinstance(self.setup.workload, ScriptWorkload):
            return f"num_workers={candidate.workers}"
        threads = f" --threads {candidate.threads}" if candidate.threads else ""
        return f"--workers {candidate.workers}{threads}"

    def _change(self) -> str | None:
        """Return what to change where in a script, if its DataLoader can be found."""
        workload, pick = self.setup.workload, self.recommended
        if pick == self.setup.current or not isinstance(workload, ScriptWorkload):
            return None
        return line_with_workers(workload.request.script, pick.workers)

    def _memory(self, candidate: Candidate) -> int | None:
        peaks = [
            peak for each in self.board.seen(candidate) if (peak := each.get("peak_memory_bytes"))
        ]
        return max(peaks, default=None)

    def _not_confirmed(self) -> str | None:
        current = self.setup.current
        if self.confirmed is not None:
            return None
        if self.race is None:
            return "other programs disturbed the trials"
        if self.race.pick == current:
            return "the current number is the one to use, so there was nothing to compare"
        return f"the current number gave no result: {self.board.died.get(current, 'not tried')}"

    # --- The trials

    def _bound_by(self, candidate: Candidate) -> tuple[str, str]:
        steady = self.board.steady(candidate)
        if not steady:
            why = self.board.died.get(candidate, "not tried")
            return "unclear", f"{candidate} gave no result: {why}"
        alone = self.board.steady(Candidate(0))
        seen = self.board.seen(candidate)
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
        seen = self.board.seen(candidate)
        rates = [rate for each in seen if (rate := self.board.rate(each))]
        to_best = self.race.to_leader.get(candidate) if self.race else None
        is_near = to_best is not None and to_best.low is not None and to_best.low >= 1 - MARGIN
        is_best = self.race is not None and candidate == self.race.leader
        steady = mean_step(figures["steady"] for figures in seen)
        return {
            "workers": candidate.workers,
            "threads": candidate.threads,
            "samples_per_s": rate_interval(interval_of(rates) if rates else None),
            "tied_with_best": candidate not in self.board.died and (is_best or is_near),
            "to_best": None if to_best is None else to_best.ratio,
            "rounds": len(seen),
            "wait_share": self.board.wait_share(candidate) if seen else None,
            "load_s": steady["load_s"],
            "load_cpu_s": steady["load_cpu_s"],
            "loader_start_s": known_mean([each.get("loader_start_s") for each in seen]),
            "pressure_cpu": known_mean([each.get("pressure_cpu") for each in seen]),
            "pressure_io": known_mean([each.get("pressure_io") for each in seen]),
            "memory_bytes": self._memory(candidate),
            "reason": self.board.died.get(candidate),
        }


def _short(candidate: Candidate) -> str:
    """Return `2`, or `2 with 1 thread`."""
    return str(candidate.workers) if candidate.threads is None else str(candidate)


def _times(ratio: Ratio | None) -> str:
    """Return `1.86 times (1.79 to 1.93)`."""
    if ratio is None:
        return "unknown times"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.2f} times (too few rounds for an interval)"
    return f"{ratio.ratio:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"

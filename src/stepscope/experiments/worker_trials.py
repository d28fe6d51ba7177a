"""How many loader workers? Trials of the real training, compared by intervals, verified."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from stepscope.analyze.bottleneck_shares import SLOWED, compute_s
from stepscope.analyze.sweep_summary import mean_step
from stepscope.errors import AnswerIsNo, RequestError
from stepscope.experiments.script_loaders import warnings_of
from stepscope.experiments.sweep_run import SweepListener, TrialBench
from stepscope.experiments.worker_candidates import (
    LOOK_STEPS,
    Candidate,
    Setup,
    first_candidates,
    next_larger,
    setup_of_script,
    setup_of_training,
)
from stepscope.experiments.worker_recommendation import Board, Pick, WorkerRecommendation, rate_of
from stepscope.experiments.workload import ScriptWorkload, TrainingWorkload
from stepscope.records import run_reader, schema
from stepscope.records.sweep_folder import Trial, create_sweep, load_sweep
from stepscope.records.types import StepFigures, SweepPlan, WorkersAnswer
from stepscope.stats.decide import Ratio
from stepscope.stats.ratios import ratio_of_rounds

_CLEARLY_FASTER = 1.1  # then a still larger number is worth a trial
_VERIFYING = 1001  # the first round number of trials that verify
_FROM_MEMORY = 1000
_LEAST_LIMIT_S = 60.0
_TIMES_THE_FIRST = 10  # a trial that takes so many times as long hangs: torch waits for ever


@dataclass
class WorkerSearch:
    """Trials of one training's workers."""

    bench: TrialBench
    setup: Setup
    board: Board = field(default_factory=Board)
    from_memory: StepFigures | None = None
    _began: float = field(default_factory=time.monotonic)
    _verifying: Iterator[int] = field(default_factory=lambda: itertools.count(_VERIFYING))

    def run(self) -> WorkerRecommendation:
        """Choose, verify, and find the bottleneck; raise AnswerIsNo if no trial completes."""
        self._first_round()
        for number in range(2, self.setup.choosing.rounds + 1):
            if number > 2 and self.board.pick().decided:
                break
            if number > 2:
                self.board.drop_losers()
            candidates = self.board.playing
            random.shuffle(candidates)
            for candidate in candidates:
                if number <= self.setup.choosing.rounds_with(candidate.workers):
                    self._try(number, candidate)
            self._check_that_one_lives()
        pick, verified = self._verified()
        self._look_at_memory()
        cost_s = time.monotonic() - self._began
        return WorkerRecommendation(
            self.setup, self.board, pick, verified, self.from_memory, cost_s
        )

    def _first_round(self) -> None:
        for candidate in first_candidates(self.setup.bounds, self.setup.current.workers):
            # Whether there is room for so many shows in what the smaller numbers took.
            most = self.setup.bounds.most(mostly_waiting=True)
            if candidate.workers <= most or candidate == self.setup.current:
                self._try(1, candidate)
        self._check_that_one_lives()
        self._try_larger()
        for candidate in self.board.alive:
            if self._competes(candidate):
                threads = max(1, self.setup.bounds.cpus - candidate.workers)
                self._try(1, replace(candidate, threads=threads))

    def _check_that_one_lives(self) -> None:
        if not self.board.playing:
            raise AnswerIsNo("; ".join(f"{c}: {why}" for c, why in self.board.died.items()))

    def _try_larger(self) -> None:
        """Try larger numbers while they help and the workers mostly wait, not compute."""
        while True:
            best = self.board.best
            smaller = [c for c in self.board.alive if c.workers < best.workers]
            if best.workers != max(c.workers for c in self.board.alive) or not smaller:
                return
            gain = self.board.ratio(smaller[-1], best)
            seen = mean_step(self.board.steady(best))
            bounds = self.setup.bounds
            larger = next_larger(best.workers, bounds, seen["load_s"], seen["load_cpu_s"])
            if larger is None or gain is None or gain.ratio < _CLEARLY_FASTER:
                return
            self._try(1, larger)
            if larger in self.board.died:
                return

    def _competes(self, candidate: Candidate) -> bool:
        """Return whether workers and compute threads compete for CPUs: fewer threads may help."""
        alone = self.board.steady(Candidate(0))
        cpus = self.setup.bounds.cpus
        if not self.setup.shares_cpus or candidate.workers == 0 or cpus == 1 or not alone:
            return False
        beside_s, alone_s = compute_s(self.board.steady(candidate)[0]), compute_s(alone[0])
        return bool(beside_s and alone_s and beside_s > SLOWED * alone_s)

    def _try(self, number: int, candidate: Candidate) -> None:
        trial = self._make(candidate, self.setup.choosing.steps, number)
        if trial.run is not None:
            said = warnings_of(run_reader.load_run(self.bench.folder.path / trial.run))
            warnings = dict.fromkeys([*self.setup.warnings, *said])
            self.setup = replace(self.setup, warnings=tuple(warnings))
        if (reason := why_no_result(trial)) is not None:
            self.board.died[candidate] = reason
            return
        self.board.note(candidate, number, trial.metrics)
        # The memory of the training and of a worker bounds larger numbers.
        bounds, seen = self.setup.bounds, trial.metrics
        if candidate.workers == 0 and seen.get("peak_memory_bytes"):
            bounds = replace(bounds, alone_bytes=seen["peak_memory_bytes"])
        if worker_bytes := seen.get("worker_bytes"):
            bounds = replace(bounds, worker_bytes=max(bounds.worker_bytes or 0, worker_bytes))
        self.setup = replace(self.setup, bounds=bounds)

    def _make(self, candidate: Candidate, steps: int, number: int) -> Trial:
        [trial] = self.bench.have([self.setup.values(candidate, steps)], number)
        wall_s = trial.metrics.get("wall_s")
        if self.bench.time_limit_s is None and wall_s:
            limit_s = max(_LEAST_LIMIT_S, _TIMES_THE_FIRST * wall_s)
            self.bench = replace(self.bench, time_limit_s=limit_s)
        return trial

    def _verified(self) -> tuple[Pick, Ratio | None]:
        """Pick and verify; if the pick dies in the verification, pick again."""
        while True:
            pick = self.board.pick()
            verified = self._verify(pick.candidate)
            if pick.candidate not in self.board.died:
                return pick, verified
            self._check_that_one_lives()

    def _verify(self, pick: Candidate) -> Ratio | None:
        """Run the pick and the current setting in turn; None if they are the same."""
        current, budget = self.setup.current, self.setup.verifying
        if pick == current or current in self.board.died:
            return None
        rates: dict[Candidate, list[float]] = {pick: [], current: []}
        rounds = min(budget.rounds_with(each.workers) for each in rates)
        for number in itertools.islice(self._verifying, rounds):
            both = [pick, current]
            random.shuffle(both)
            made = {each: self._make(each, budget.steps, number) for each in both}
            for each, trial in made.items():
                if (reason := why_no_result(trial)) is not None:
                    self.board.died[each] = reason
                    return None
            for each, trial in made.items():
                rates[each].append(rate_of(trial.metrics))
        return ratio_of_rounds(rates[current], rates[pick])

    def _look_at_memory(self) -> None:
        """Time batches from memory too, to separate reading files from preprocessing."""
        current = self.setup.current
        if not self.setup.reads_files or current in self.board.died:
            return
        values = self.setup.values(current, self.setup.choosing.steps)
        values |= {"source": "memory", "source_delay_ms": 0.0, "page_cache": "keep"}
        [trial] = self.bench.have([values], _FROM_MEMORY)
        self.from_memory = trial.metrics.get("steady")


def why_no_result(trial: Trial) -> str | None:
    """Return why a trial measured nothing of its number of workers, or None."""
    if trial.status != schema.COMPLETED:
        return trial.reason or trial.status
    if trial.metrics.get("workers_lost"):
        return "it lost loader workers during the trial"
    if not trial.metrics.get("steady_samples_per_s"):
        return "too few steps to measure: all of them only filled the prefetch buffers"
    return None


def find_workers(
    workload: TrainingWorkload | ScriptWorkload,
    listener: SweepListener,
    *,
    out: Path,
    name: str,
) -> WorkersAnswer:
    """Find the number of workers to use, with its evidence; the trials are kept like a sweep's.

    Raises:
        RequestError: there is no loader that workers could be given to.
        AnswerIsNo: no trial completed.
    """
    workload.check({})
    asked = cast(SweepPlan, {"kind": "workers", **workload.to_json(), "over": None})
    bench = TrialBench(create_sweep(out, name, asked, []), workload, listener)
    with bench.open():
        if isinstance(workload, TrainingWorkload):
            setup = setup_of_training(workload)
        else:
            setup = _look_at_script(bench, workload)
        search = WorkerSearch(replace(bench, workload=setup.workload), setup)
        return search.run().to_json(bench.folder.path)


def _look_at_script(bench: TrialBench, workload: ScriptWorkload) -> Setup:
    """Run a user's script for a few steps, unchanged, to learn about its DataLoader."""
    [trial] = bench.have([{"max_steps": LOOK_STEPS}], 0)
    folder = load_sweep(bench.folder.path).folder_of(trial)
    if trial.status != schema.COMPLETED or trial.exit_code:
        error = RequestError if trial.exit_code == RequestError.exit_code else AnswerIsNo
        raise error(f"{trial.reason}. The script's output is in {folder}.")
    return setup_of_script(workload, run_reader.load_run(folder))

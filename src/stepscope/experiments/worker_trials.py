"""How many loader workers? Trials of the real training, raced in rounds, the pick confirmed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from stepscope.analyze.bottleneck_shares import SLOWED, compute_s
from stepscope.errors import AnswerIsNo, RequestError
from stepscope.experiments.script_loaders import warnings_of
from stepscope.experiments.sweep_run import SweepListener, TrialBench
from stepscope.experiments.worker_candidates import (
    LOOK_STEPS,
    Candidate,
    Setup,
    candidates,
    setup_of_script,
    setup_of_training,
)
from stepscope.experiments.worker_recommendation import (
    Board,
    Confirmation,
    WorkerRecommendation,
    rounds_to_confirm,
)
from stepscope.experiments.workload import ScriptWorkload, TrainingWorkload
from stepscope.records import run_reader, schema
from stepscope.records.sweep_folder import Trial, create_sweep, load_sweep
from stepscope.records.types import StepFigures, SweepPlan, TrialMetrics, WorkersAnswer
from stepscope.stats.decide import Race, design
from stepscope.stats.intervals import FEWEST_ROUNDS

_LOOKS = 3  # at the race: after the third round, the fourth and the fifth
_SPARE_ROUNDS = 3  # in place of those that other programs disturbed
_WARM_UP = 0  # the round number of trials that are not counted
_CONFIRMING = 1001  # the first round number of trials that confirm
_FROM_MEMORY = 1000
_LEAST_LIMIT_S = 60.0
_TIMES_THE_FIRST = 10  # a trial that takes so many times as long hangs: torch waits for ever

Round = dict[Candidate, TrialMetrics]


@dataclass
class WorkerSearch:
    """Trials of one training's workers."""

    bench: TrialBench
    setup: Setup
    board: Board = field(init=False)
    _spare: int = _SPARE_ROUNDS
    _began: float = field(default_factory=time.monotonic)
    _made: int = 0
    _expected: int = 0

    def __post_init__(self) -> None:
        self.board = Board(self.setup.rate)

    def run(self) -> WorkerRecommendation:
        """Choose, confirm, and find the bottleneck; raise AnswerIsNo if no trial completes."""
        self._warm_up()
        race, waits_for_nothing = self._race()
        confirmed = None
        while race is not None and race.pick != self.setup.current:
            confirmed = self._confirm(race.pick)
            if race.pick not in self.board.died:
                break
            self._living(self.board.tried())
            race = self.board.race(self.setup.current, _LOOKS, _LOOKS)  # what else was fast
        return WorkerRecommendation(
            self.setup,
            self.board,
            race,
            confirmed,
            waits_for_nothing=waits_for_nothing,
            from_memory=self._look_at_memory(),
            cost_s=time.monotonic() - self._began,
        )

    def _warm_up(self) -> None:
        """Run a trial with workers that does not count: it is cold, and shows what they need."""
        if self.setup.bounds.worker_bytes is None:
            workers = replace(self.setup.current, workers=max(1, self.setup.current.workers))
            trial = self._make(workers, _WARM_UP)
            if why_no_result(trial, self.setup) is None:
                bounds = self.setup.bounds.with_seen(workers.workers, trial.metrics)
                self.setup = replace(self.setup, bounds=bounds)

    def _race(self) -> tuple[Race[Candidate] | None, bool]:
        """Run rounds until they decide; None if other programs disturbed too many of them.

        Also return whether the current number waits for nothing.
        """
        current, rounds = self.setup.current, FEWEST_ROUNDS - 1 + _LOOKS
        playing = candidates(self.setup.bounds, current.workers)
        orders = iter(design(playing, rounds + _SPARE_ROUNDS))
        race, number = None, 0
        while len(self.board.rounds) < rounds and self._spare:
            number += 1
            rounds_left = max(1, FEWEST_ROUNDS - len(self.board.rounds))
            self._expected = self._made + rounds_left * len(playing) + 2 * FEWEST_ROUNDS
            found = self._round(number, [each for each in next(orders) if each in playing])
            if number == 1 and (fewer := self._with_fewer_threads(found)):
                playing = sorted([*playing, *fewer], key=lambda each: each.size)
                random.shuffle(fewer)
                found |= self._round(number, fewer)
                orders = iter(design(playing, rounds + _SPARE_ROUNDS))
            playing = self._living(playing)
            if not self._counts(found):
                continue
            self.board.rounds.append(found)
            look = len(self.board.rounds) - FEWEST_ROUNDS + 1
            if look >= 1:
                race = self.board.race(current, look, _LOOKS)
                assert race is not None, "one of them lives"
                playing = [each for each in playing if each in race.racing]
                idle = self.board.waits_for_nothing(current, race, look, _LOOKS)
                if race.shown or idle:
                    return race, idle
        return race, False

    def _round(self, number: int, order: Iterable[Candidate]) -> Round:
        """Run a trial of each candidate, and return the figures of those with a result."""
        found: Round = {}
        for candidate in order:
            trial = self._make(candidate, number)
            if (reason := why_no_result(trial, self.setup)) is not None:
                self.board.died[candidate] = reason
            else:
                found[candidate] = trial.metrics
        return found

    def _counts(self, found: Round) -> bool:
        """Return whether no other program disturbed a round; it is repeated otherwise."""
        if not any(figures.get("disturbed") for figures in found.values()):
            return True
        self.board.disturbed.append(found)
        self._spare -= 1
        return False

    def _living(self, playing: list[Candidate]) -> list[Candidate]:
        """Return those that did not die; raise AnswerIsNo if there are none."""
        died = self.board.died
        if died.keys() >= set(playing):
            raise AnswerIsNo("; ".join(f"{each}: {why}" for each, why in died.items()))
        return [each for each in playing if each not in died]

    def _with_fewer_threads(self, found: Round) -> list[Candidate]:
        """Return candidates with fewer threads where workers and threads compete for CPUs."""
        cpus, alone = self.setup.bounds.cpus, found.get(Candidate(0))
        if not self.setup.shares_cpus or cpus == 1 or alone is None:
            return []
        alone_s = compute_s(alone["steady"])
        slowed = [
            each
            for each, figures in found.items()
            if each.workers
            and alone_s
            and (beside_s := compute_s(figures["steady"]))
            and beside_s > SLOWED * alone_s
        ]
        return [replace(each, threads=max(1, cpus - each.workers)) for each in slowed]

    def _confirm(self, pick: Candidate) -> Confirmation | None:
        """Run the pick and the current setting in fresh rounds; None if one of them dies."""
        current = self.setup.current
        if current in self.board.died:
            return None
        wanted = rounds_to_confirm(self.board.ratio(current, pick))
        rounds: list[Round] = []
        self._expected = self._made + 2 * wanted
        orders = design([pick, current], wanted + self._spare)
        for number, order in enumerate(orders, _CONFIRMING):
            found = self._round(number, order)
            if len(found) < len(order):
                return None
            rounds += [found] if self._counts(found) else []
            if len(rounds) == wanted or not self._spare:
                break
        return Confirmation.of(*self.board.rates_in(rounds, current, pick))

    def _make(self, candidate: Candidate, number: int) -> Trial:
        values = self.setup.values(candidate)
        passed_s, left = time.monotonic() - self._began, max(1, self._expected - self._made)
        left_s = passed_s * left / self._made if self._made else None
        [trial] = self.bench.have([values], number, self._expected or None, left_s)
        self._made = trial.index + 1
        if trial.run is not None:
            said = warnings_of(run_reader.load_run(self.bench.folder.path / trial.run))
            warnings = dict.fromkeys([*self.setup.warnings, *said])
            self.setup = replace(self.setup, warnings=tuple(warnings))
        wall_s = trial.metrics.get("wall_s")
        if self.bench.time_limit_s is None and wall_s:
            limit_s = max(_LEAST_LIMIT_S, _TIMES_THE_FIRST * wall_s)
            self.bench = replace(self.bench, time_limit_s=limit_s)
        return trial

    def _look_at_memory(self) -> StepFigures | None:
        """Time batches from memory too, to separate reading files from preprocessing."""
        current = self.setup.current
        if not self.setup.reads_files or current in self.board.died:
            return None
        values = self.setup.values(current)
        values |= {"source": "memory", "source_delay_ms": 0.0, "page_cache": "keep"}
        [trial] = self.bench.have([values], _FROM_MEMORY)
        return trial.metrics.get("steady")


def why_no_result(trial: Trial, setup: Setup) -> str | None:
    """Return why a trial measured nothing of its number of workers, or None."""
    if trial.status != schema.COMPLETED:
        return trial.reason or trial.status
    if trial.metrics.get("workers_lost"):
        return "it lost loader workers during the trial"
    if not setup.rate(trial.metrics):
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
    setup = setup_of_training(workload) if isinstance(workload, TrainingWorkload) else None
    asked = cast(SweepPlan, {"kind": "workers", **workload.to_json(), "over": None})
    bench = TrialBench(create_sweep(out, name, asked, []), workload, listener)
    with bench.open():
        if setup is None:
            setup = _look_at_script(bench, cast("ScriptWorkload", workload))
        search = WorkerSearch(replace(bench, workload=setup.workload), setup)
        return search.run().to_json(bench.folder.path)


def _look_at_script(bench: TrialBench, workload: ScriptWorkload) -> Setup:
    """Run a user's script for a few steps, unchanged, to learn about its DataLoader."""
    [trial] = bench.have([{"max_steps": LOOK_STEPS}], _WARM_UP)
    folder = load_sweep(bench.folder.path).folder_of(trial)
    if trial.status != schema.COMPLETED or trial.exit_code:
        error = RequestError if trial.exit_code == RequestError.exit_code else AnswerIsNo
        raise error(f"{trial.reason}. The script's output is in {folder}.")
    return setup_of_script(workload, run_reader.load_run(folder))

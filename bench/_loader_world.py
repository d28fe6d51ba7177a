"""A simulated DataLoader: workers make batches in turn, two ahead each, the training uses them.

With it, the whole search of `stepscope workers` runs without a training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from stepscope.analyze.sweep_summary import metrics
from stepscope.experiments.worker_candidates import Bounds, Candidate, Setup
from stepscope.experiments.worker_recommendation import WorkerRecommendation
from stepscope.experiments.worker_trials import WorkerSearch
from stepscope.experiments.workload import TrainingWorkload
from stepscope.records import schema
from stepscope.records.sweep_folder import Trial
from stepscope.records.table import Table

PREFETCH = 2


@dataclass(frozen=True)
class Loop:
    """A training of batches: what a batch takes a worker, and a step the training process.

    Times spread by `spread` (log-normal). The first step is slow: libraries are initialised.
    """

    load_s: float
    train_s: float
    spread: float = 0.0
    first_step_s: float = 1.0
    slowed_by_a_worker: float = 0.0  # by how much each worker slows the training down

    def steps(self, workers: int, count: int, chance: random.Random) -> list[dict[str, Any]]:
        """Return the rows of `steps.csv` of one epoch's first steps."""
        train_s = self.train_s * (1 + self.slowed_by_a_worker * workers)

        def taken(mean_s: float) -> float:
            return mean_s * chance.lognormvariate(0, self.spread)

        rows: list[dict[str, Any]] = []
        used_s: list[float] = []
        made_s: list[float] = []
        free_s = ready_s = 0.0
        for number in range(count):
            is_asked = workers and number >= PREFETCH * workers
            asked_s = used_s[number - PREFETCH * workers] if is_asked else 0.0
            before_s = made_s[number - workers] if workers and number >= workers else 0.0
            begin_s = max(asked_s, before_s) if workers else free_s
            load_s = taken(self.load_s)
            made_s.append(begin_s + load_s)
            ready_s = max(ready_s, made_s[-1])
            used_s.append(max(free_s, ready_s))
            step_s = used_s[-1] - free_s + (taken(train_s) if number else self.first_step_s)
            rows.append(
                {
                    "epoch": 1,
                    "step": number + 1,
                    "start_s": free_s,
                    "samples": 1,
                    "data_s": used_s[-1] - free_s,
                    "step_s": step_s,
                    "detail": "full",
                    "load_start_s": begin_s,
                    "load_s": load_s,
                    "load_cpu_s": load_s,
                    "load_worker": number % workers if workers else -1,
                }
            )
            free_s += step_s
        return rows

    def rate(self, workers: int, chance: random.Random, count: int = 4000) -> float:
        """Return the batches per second of a long epoch."""
        rows = self.steps(workers, count, chance)
        later = rows[count // 4 :]
        return len(later) / sum(row["step_s"] for row in later)


@dataclass
class SimulatedBench:
    """Makes the trials of a search by simulation, instead of an `experiments.TrialBench`.

    `noise` is the logarithm of a trial's disturbance, by the numbers of trial and round;
    `disturbed` is whether other programs ran in a round.
    """

    loop: Loop
    chance: random.Random
    noise: Callable[[int, int], float] = lambda run, round_: 0.0
    disturbed: Callable[[int], bool] = lambda round_: False
    died: Mapping[int, str] = field(default_factory=dict)  # by the number of workers
    time_limit_s: float | None = 60.0
    made: list[tuple[int, int]] = field(default_factory=list)  # round and workers of each trial

    def have(
        self, settings: Sequence[Mapping[str, Any]], repeat: int, *shown: object
    ) -> list[Trial]:
        [values] = settings
        number, workers = len(self.made), values["workers"]
        self.made.append((repeat, workers))
        if workers in self.died:
            reason = self.died[workers]
            return [Trial(number, dict(values), repeat, status=schema.FAILED, reason=reason)]
        rows = self.loop.steps(workers, values["max_steps"], self.chance)
        slower = math.exp(-self.noise(number, repeat))
        timed = {
            name: [row[name] * (slower if name.endswith("_s") else 1) for row in rows]
            for name in rows[0]
            if name != "detail"
        }
        run = SimpleNamespace(
            steps=Table({**timed, "detail": [schema.FULL] * len(rows)}),
            telemetry=Table({}),
            spec={"workers": workers},
            summary={},
            info={},
            events=[],
            epoch_rows=lambda split: [],
        )
        figures = metrics(run)  # type: ignore[arg-type]
        figures["disturbed"], figures["others_cpu_share"] = self.disturbed(repeat), 0.7
        return [Trial(number, dict(values), repeat, status=schema.COMPLETED, metrics=figures)]


def search(bench: SimulatedBench, current: int, cpus: int = 4) -> WorkerRecommendation:
    """Run the whole search of `stepscope workers` on a simulated training of long epochs."""
    bounds = Bounds(cpus=cpus)
    setup = Setup(TrainingWorkload({}), Candidate(current), 1000, 1, bounds)
    return WorkerSearch(bench, setup).run()  # type: ignore[arg-type]

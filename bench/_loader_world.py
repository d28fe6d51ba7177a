"""A simulated DataLoader: workers make batches in turn, two ahead each, the training uses them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

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
            asked_s = used_s[number - PREFETCH * workers] if number >= PREFETCH * workers else 0.0
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

"""How much may be measured: a tenth of an epoch's steps to choose by, as much to verify by.

Both are for each number of workers. The steps of a run's start are made and not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.analyze.trial_metrics import whole_turns

_SHARE = 10
_CHOOSING_ROUNDS = (5, 4, 3, 2)  # the most whose trials still have enough steps
_LEAST_ROUNDS = 2
_LEAST_VERIFYING_ROUNDS = 3
_ENOUGH_STEPS = 6
_LEAST_STEPS = 2
_MOST_STEPS = 40  # more steps of one run say little more: runs differ by more than their steps


@dataclass(frozen=True)
class Budget:
    """Rounds of trials, steps measured in each of them, and the most to measure in all of them."""

    steps: int
    rounds: int
    verifying_steps: int
    verifying_rounds: int
    most: int

    def rounds_with(self, workers: int) -> int:
        """Return how many rounds a number of workers can be in: its windows are whole turns."""
        window = whole_turns(self.steps, workers)
        return max(_LEAST_ROUNDS, min(self.rounds, self.most // window))

    def verifying_rounds_with(self, workers: int) -> int:
        """Return how many rounds a number of workers can be verified in."""
        window = whole_turns(self.verifying_steps, workers)
        return max(_LEAST_ROUNDS, min(self.verifying_rounds, self.most // window))

    @property
    def most_workers(self) -> int:
        """The largest number whose turns go into the budget often enough."""
        return max(1, self.most // _LEAST_ROUNDS)


def budget_of(steps_an_epoch: int) -> Budget:
    """Divide a tenth of an epoch among rounds; a very short epoch gives the least there is."""
    most = steps_an_epoch // _SHARE
    rounds = next((n for n in _CHOOSING_ROUNDS if most // n >= _ENOUGH_STEPS), _LEAST_ROUNDS)
    verifying_rounds = max(rounds, _LEAST_VERIFYING_ROUNDS)
    return Budget(
        _between(most // rounds),
        rounds,
        _between(most // verifying_rounds),
        verifying_rounds,
        most,
    )


def _between(steps: int) -> int:
    return min(_MOST_STEPS, max(_LEAST_STEPS, steps))

"""How much may be measured: a tenth of an epoch's steps to choose by, as much to verify by.

Both are for each number of workers. The steps of a run's start are made and not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

_SHARE = 10
_CHOOSING_ROUNDS = (5, 4, 3, 2)  # the most whose trials still have enough steps
_LEAST_VERIFYING_ROUNDS = 3
_ENOUGH_STEPS = 6
_LEAST_STEPS = 2
_MOST_STEPS = 40  # more steps of one run say little more: runs differ by more than their steps


@dataclass(frozen=True)
class Budget:
    """Rounds of trials, and steps measured in each of them."""

    steps: int
    rounds: int
    verifying_steps: int
    verifying_rounds: int

    @property
    def steps_in_all(self) -> int:
        """Steps measured to choose by, of a number that is tried in every round."""
        return self.steps * self.rounds


def budget_of(steps_an_epoch: int) -> Budget:
    """Divide a tenth of an epoch among rounds; a very short epoch gives the least there is."""
    most = steps_an_epoch // _SHARE
    rounds = next((n for n in _CHOOSING_ROUNDS if most // n >= _ENOUGH_STEPS), _CHOOSING_ROUNDS[-1])
    verifying_rounds = max(rounds, _LEAST_VERIFYING_ROUNDS)
    return Budget(
        _between(most // rounds), rounds, _between(most // verifying_rounds), verifying_rounds
    )


def whole_turns(steps: int, workers: int) -> int:
    """Return at least so many steps that batches of every worker come as often as of each other.

    They come in bursts, one from each worker: part of a burst would look too fast or too slow.
    """
    return -(-steps // workers) * workers if workers else steps


def _between(steps: int) -> int:
    return min(_MOST_STEPS, max(_LEAST_STEPS, steps))

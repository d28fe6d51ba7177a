"""What to do about the memory of a run: a rule without state, from one reading to one action.

    near its own limit or over it only with its workers, or its pool nearly empty, or it is swapped
        it has loader workers   -> end the youngest, pause, look again
        it has none             -> ask it to end between two steps, with a checkpoint
    over its limit even without them, or its pool emptier still, or swapped long after it was asked
                                -> kill it

A pool is the machine's memory, or what a container may have of it. A pool ends a run only if the
run holds more than half of what is in use there. So somebody else's moment of use never ends a
small run; and two runs of the same size, together in want, are left to the kernel.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_MIB = 2**20


class Action(enum.Enum):
    """What is to be done; the values are the words in `events.jsonl`."""

    NOTHING = "nothing"
    END_WORKER = "worker_ended"
    ASK = "asked_to_end"
    KILL = "killed"


@dataclass(frozen=True)
class Pool:
    """Memory that the run shares with others."""

    name: str
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Reading:
    """A run's memory at one moment, and what was done about it so far.

    `used_bytes` is the whole process tree's, swap included; `workers_bytes` of it would be free
    without the workers. `pressure_percent` is None where the system does not tell. `acted_s` and
    `asked_s` are how long ago something was last done and when the run was asked to end; None:
    never.
    """

    used_bytes: int
    pools: tuple[Pool, ...] = ()
    workers: int = 0
    workers_bytes: int = 0
    swap_growth_bytes: int = 0
    pressure_percent: float | None = None
    acted_s: float | None = None
    asked_s: float | None = None


@dataclass(frozen=True)
class Limits:
    """Where the rule draws its lines. All but the first are ours.

    near_share: of the limit. What is left, 100 MiB of 2 GiB, is room for a checkpoint.
    floor_share: of a pool. About twice what the kernel keeps for itself (its watermarks are some
        1 % of memory): below those it stops every process that wants a page until it has found one.
    floor_least_bytes: for small boards. A checkpoint of a network of the zoo passes through less.
    own_share: of what is in use in a pool, for the run to be what fills it.
    pressure_percent: of the last 10 s in which somebody waited for memory. The kernel also moves
        pages to swap that nobody has used for long, and nobody waits for that.
    pause_s: after a worker's end. Sizes of all processes are read once a second.
    patience_s: for a run that is being swapped to come to the end of its step.
    """

    limit_bytes: int | None = None
    near_share: float = 0.95
    floor_share: float = 0.02
    floor_least_bytes: int = 64 * _MIB
    own_share: float = 0.5
    pressure_percent: float = 20.0
    pause_s: float = 1.5
    patience_s: float = 10.0

    def floor_bytes(self, pool: Pool) -> int:
        """Return what must stay available in a pool."""
        return max(round(pool.total_bytes * self.floor_share), self.floor_least_bytes)


def decide(reading: Reading, limits: Limits) -> Action:
    """Say what one reading asks for."""
    own_pools = [pool for pool in reading.pools if _fills(reading, pool, limits)]
    swapped = bool(own_pools) and _is_swapped(reading, limits)
    if _is_over(reading, own_pools, limits) or (
        swapped and reading.asked_s is not None and reading.asked_s > limits.patience_s
    ):
        return Action.KILL
    if not (swapped or _is_near(reading, own_pools, limits)) or reading.asked_s is not None:
        return Action.NOTHING
    if reading.acted_s is not None and reading.acted_s < limits.pause_s:
        return Action.NOTHING
    return Action.END_WORKER if reading.workers else Action.ASK


def _fills(reading: Reading, pool: Pool, limits: Limits) -> bool:
    in_use = pool.total_bytes - pool.available_bytes
    return reading.used_bytes > limits.own_share * in_use


def _is_swapped(reading: Reading, limits: Limits) -> bool:
    waited = reading.pressure_percent
    return reading.swap_growth_bytes > 0 and waited is not None and waited > limits.pressure_percent


def _is_over(reading: Reading, own_pools: list[Pool], limits: Limits) -> bool:
    alone_bytes = reading.used_bytes - (reading.workers_bytes if reading.workers else 0)
    if limits.limit_bytes is not None and alone_bytes > limits.limit_bytes:
        return True
    return any(pool.available_bytes < limits.floor_bytes(pool) / 2 for pool in own_pools)


def _is_near(reading: Reading, own_pools: list[Pool], limits: Limits) -> bool:
    if limits.limit_bytes is not None:
        near = reading.used_bytes > limits.near_share * limits.limit_bytes
    else:
        near = False
    return near or any(pool.available_bytes < limits.floor_bytes(pool) for pool in own_pools)

"""Successive halving: many designs are trained briefly, the better half longer, and so on.

The last rung has the epochs that were asked for, each one before it half as many. Every rung trains
from the beginning: a schedule of the learning rate is of the epochs that it is made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from stepscope.errors import RequestError

Candidate = TypeVar("Candidate")


def rung_epochs(designs: int, epochs: int) -> list[int]:
    """Return the epochs of each rung; no more rungs than halve the designs down to one."""
    halvings = designs.bit_length() - 1
    return sorted({max(1, epochs >> halved) for halved in range(halvings + 1)})


def in_last_rung(designs: int, rungs: int) -> int:
    """Return how many of so many designs reach the last rung."""
    for _ in range(rungs - 1):
        designs = -(-designs // 2)
    return designs


def check_rungs(rungs: Sequence[int], designs: int, finals: int, max_steps: int | None) -> None:
    """Refuse to test more designs than are left, and rungs that all train equally long.

    Raises:
        RequestError: it is so.
    """
    left = in_last_rung(designs, len(rungs))
    if not 1 <= finals <= left:
        raise RequestError(
            f"finals: wanted 1 to {left}, as many of the {designs} trials as reach the last rung, "
            f"found {finals}."
        )
    if max_steps is not None and len(rungs) > 1:
        raise RequestError(
            f"max_steps: {max_steps} would end the trainings of {rungs[0]} and of {rungs[-1]} "
            "epochs alike. Leave it out, or search with --epochs 1."
        )


def better_half(
    judged: Sequence[tuple[Candidate, float | None]],
) -> list[tuple[Candidate, float]]:
    """Return the better half, the best first; who has no result is out.

    Of equals the first is in. An odd number is rounded up.
    """
    known = [(candidate, value) for candidate, value in judged if value is not None]
    ranked = sorted(known, key=lambda each: each[1], reverse=True)
    return ranked[: -(-len(judged) // 2)]

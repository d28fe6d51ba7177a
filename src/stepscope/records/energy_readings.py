"""How readings of energy are to be taken: counters that wrap, domains that contain one another.

A run keeps its readings as they came (`energy.csv`); this is what everybody must know who turns two
of them into joules, or several domains into a sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

EVERYTHING = "*"  # a domain that contains whatever else the machine can tell
STALL_S = 10.0  # a counter of a machine that is on always moves; a part of it may rest
_MOST_W = 20_000.0  # more than any machine that has such a sensor: a jump, not a reading


def grown_j(
    before_j: float, after_j: float, took_s: float, range_j: float | None = None
) -> float | None:
    """Return what a counter counted between two readings; None where it jumped.

    A counter below its last reading has wrapped, if that leaves it less than half its range ahead:
    at ten readings a second the rest is never as much. Otherwise it began anew.
    """
    grown = after_j - before_j
    if grown < 0:
        if range_j is None or grown + range_j > range_j / 2 or grown + range_j < 0:
            return None
        grown += range_j
    return grown if grown <= _MOST_W * took_s else None


def widest(contains: Mapping[str, Collection[str]]) -> list[str]:
    """Return the domains that are part of no other one, given what each contains.

    Of two that both contain everything, the first is taken: put the one to be preferred first.
    """
    taken: list[str] = []
    for domain in contains:
        whole = EVERYTHING in contains[domain]
        others = [other for other in contains if other != domain]
        within = any(domain in contains[other] for other in others)
        within |= not whole and any(EVERYTHING in contains[other] for other in others)
        within |= whole and any(EVERYTHING in contains[other] for other in taken)
        if not within:
            taken.append(domain)
    return taken

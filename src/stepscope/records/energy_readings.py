"""How to interpret energy readings: counters that wrap, domains that contain one another."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stepscope.records.types import EVERYTHING

STALL_S = 10.0  # the counter of a running machine always moves; that of a part may rest
_MOST_W = 20_000.0  # above any machine with such a sensor: a jump, not a reading


def grown_j(
    before_j: float, after_j: float, took_s: float, range_j: float | None = None
) -> float | None:
    """Return the joules between two readings of a counter; None if it jumped.

    A counter below its last reading has wrapped if that leaves it less than half its range ahead:
    at ten readings a second the energy is never as much. Otherwise it was reset.
    """
    grown = after_j - before_j
    if grown < 0:
        if range_j is None or grown + range_j > range_j / 2 or grown + range_j < 0:
            return None
        grown += range_j
    return grown if grown <= _MOST_W * took_s else None


def widest(contains: Mapping[str, Collection[str]]) -> list[str]:
    """Return the domains that no other one contains.

    Of two domains that both contain everything, the first is taken: put the preferred one first.
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

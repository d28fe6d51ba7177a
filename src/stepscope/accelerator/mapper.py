"""The best mapping of a layer: fewest cycles first, then least energy.

The search covers all splits of the loops over DRAM, buffer and scratchpad, all orders of the loops
and all choices of tensors to keep in the buffer. Two shortcuts make it fast, and neither can miss
the best mapping:

- Orders that reuse the same tensors count as one.
- Each split has a lower bound of its energy: each tensor in its best order, with room for all. The
  most promising splits are evaluated first; those that cannot beat the best one are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import isqrt, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.accelerator.design import AcceleratorDesign
from stepscope.accelerator.layer import Layer
from stepscope.accelerator.tensor_traffic import BEST_OUTER, LEVELS, Floats, Mappings, Orders
from stepscope.errors import RequestError

# The orders of the loops of a level, innermost first. Others bring nothing: which tensor is reused
# depends only on the innermost loops, and tiles of the input overlap only along P or Q. In the
# scratchpad P, Q, R and S are innermost.
DRAM_ORDERS = ("PQCM", "QPCM", "MCPQ", "CMPQ")
BUFFER_ORDERS = ("PQCM", "MCPQ", "CMPQ")
SCRATCHPAD_ORDERS = ("PQRSCM", "RSPQCM", "RSPQMC")
ALL_ORDERS = 24 * 24 * 48  # of four loops, of four loops, of two around four

_AT_ONCE = 200_000  # splits: their arrays stay below a few hundred megabytes
_MOST_SPLITS = 30_000_000  # a few minutes; ten times those of a layer on a full camera image
_PROMISING = 400
_WAYS_TO_KEEP = tuple(product((False, True), repeat=3))
_TENSORS = ("weights", "inputs", "outputs")


@dataclass(frozen=True)
class Widths:
    """The widths of C and M on the array; None for the best one up to that of the array."""

    m: int | None = None
    c: int | None = None


@dataclass(frozen=True)
class Mapped:
    """The best mapping of a layer, with figures for all groups and samples."""

    layer: Layer
    c_wide: int
    m_wide: int
    cycles: int
    energy_pj: dict[str, float]
    loops: dict[str, dict[str, int]]
    orders: Orders
    kept: tuple[str, ...]
    evaluated: int
    space: int
    validated: bool

    @property
    def energy_uj(self) -> float:
        """The energy of all levels."""
        return sum(self.energy_pj.values()) / 1e6

    def utilization(self, design: AcceleratorDesign) -> float:
        """Return the share of the array's multiply-adds in that time that were used."""
        return self.layer.macs / (self.cycles * design.widest_c * design.widest_m)


@dataclass(frozen=True)
class _Best:
    """The best mapping found so far."""

    cycles: float
    energy_pj: float
    mapping: Mappings
    orders: Orders
    kept: tuple[bool, ...]


def check_widths(design: AcceleratorDesign, widths: Widths) -> None:
    """Raise RequestError if the array is narrower than these widths."""
    if (widths.c or 1) > design.widest_c or (widths.m or 1) > design.widest_m:
        raise RequestError(
            f"spatial: wanted at most {design.widest_m}x{design.widest_c} (M x C), the array of "
            f"{design.name}; found {widths.m}x{widths.c}."
        )


@lru_cache(maxsize=1024)
def map_layer(layer: Layer, design: AcceleratorDesign, widths: Widths = Widths()) -> Mapped:  # noqa: B008
    """Find the best mapping of a layer."""
    check_widths(design, widths)
    one = replace(layer, C=layer.C // layer.groups, M=layer.M // layer.groups, groups=1, batch=1)
    best = min(
        (
            found
            for c_wide, m_wide in _spreads(one, design, widths)
            if (found := _search(one, design, c_wide, m_wide)) is not None
        ),
        key=lambda found: (found.cycles, found.energy_uj),
        default=None,
    )
    if best is None:
        kernel = one.R * one.S
        raise RequestError(
            f"design {design.name}: wanted a scratchpad that holds one kernel of {one.R}x{one.S}, "
            f"{kernel} words, found {design.scratchpad_words}."
        )
    times = layer.groups * layer.batch
    divides = one.C % best.c_wide == 0 and one.M % best.m_wide == 0
    return replace(
        best,
        layer=layer,
        cycles=best.cycles * times,
        energy_pj={level: energy * times for level, energy in best.energy_pj.items()},
        validated=times == 1 and divides,
    )


def _spreads(layer: Layer, design: AcceleratorDesign, widths: Widths) -> list[tuple[int, int]]:
    """Return the narrowest widths of C and M among those with the fewest steps."""
    c_choices = _choices(layer.C, widths.c, design.widest_c)
    m_choices = _choices(layer.M, widths.m, design.widest_m)
    spreads = product(c_choices, m_choices)
    steps = {(c, m): -(-layer.C // c) * -(-layer.M // m) for c, m in spreads}
    fewest = min(steps.values())
    return [spread for spread, count in steps.items() if count == fewest]


def _choices(bound: int, given: int | None, widest: int) -> list[int]:
    if given is not None:
        return [min(bound, given)]
    narrowest: dict[int, int] = {}
    for width in range(min(bound, widest), 0, -1):
        narrowest[-(-bound // width)] = width
    return list(narrowest.values())


def _search(layer: Layer, design: AcceleratorDesign, c_wide: int, m_wide: int) -> Mapped | None:
    best: _Best | None = None
    evaluated = 0
    for mappings in _blocks(layer, design, c_wide, m_wide):
        for inner in SCRATCHPAD_ORDERS:
            bound = _least_energy_pj(mappings, inner, design)
            first = np.argsort(bound, kind="stable")[:_PROMISING]
            best = _evaluate(_chosen(mappings, first), inner, design, best)
            limit = np.inf if best is None or best.cycles > mappings.cycles else best.energy_pj
            rest = np.setdiff1d(np.flatnonzero(bound <= limit), first)
            best = _evaluate(_chosen(mappings, rest), inner, design, best) if len(rest) else best
            evaluated += len(first) + len(rest)
    if best is None:
        return None
    space = prod(len(splits(bound)) for bound in _bounds(layer, c_wide, m_wide).values())
    return _described(best, design, evaluated, space)


def _bounds(layer: Layer, c_wide: int, m_wide: int) -> dict[str, int]:
    return {
        "C": -(-layer.C // c_wide),
        "M": -(-layer.M // m_wide),
        "P": layer.P,
        "Q": layer.Q,
    }


@lru_cache(maxsize=4096)
def splits(bound: int) -> npt.NDArray[np.int64]:
    """Return every way to split a bound over DRAM, buffer and scratchpad, one a row."""
    found = [
        (outer, middle, bound // outer // middle)
        for outer in _divisors(bound)
        for middle in _divisors(bound // outer)
    ]
    return np.array(found, dtype=np.int64)


@lru_cache(maxsize=4096)
def _divisors(bound: int) -> list[int]:
    small = [each for each in range(1, isqrt(bound) + 1) if bound % each == 0]
    return sorted({*small, *(bound // each for each in small)})


def _blocks(
    layer: Layer, design: AcceleratorDesign, c_wide: int, m_wide: int
) -> Iterator[Mappings]:
    """Yield all splits whose weights fit into a scratchpad, in blocks."""
    every = {name: splits(bound) for name, bound in _bounds(layer, c_wide, m_wide).items()}
    c, m = np.meshgrid(*(np.arange(len(every[name])) for name in "CM"), indexing="ij")
    words = every["C"][c, 2] * every["M"][m, 2] * layer.R * layer.S
    c, m = c[words <= design.scratchpad_words], m[words <= design.scratchpad_words]
    p, q = (
        each.ravel()
        for each in np.meshgrid(*(np.arange(len(every[name])) for name in "PQ"), indexing="ij")
    )
    if len(c) * len(p) > _MOST_SPLITS:
        raise RequestError(
            f"layer: its loops can be split in {len(c) * len(p):,} ways, and at most "
            f"{_MOST_SPLITS:,} are searched. Choose smaller bounds, or bounds with fewer divisors."
        )
    rows = max(1, _AT_ONCE // len(p))
    for begin in range(0, len(c), rows):
        some = slice(begin, begin + rows)
        count = len(c[some])
        index = {
            "C": np.repeat(c[some], len(p)),
            "M": np.repeat(m[some], len(p)),
            "P": np.tile(p, count),
            "Q": np.tile(q, count),
        }
        loops = {
            level: {name: every[name][index[name], number].astype(float) for name in "CMPQ"}
            for number, level in enumerate(LEVELS)
        }
        for name in "RS":
            loops["scratchpad"][name] = np.full(count * len(p), float(getattr(layer, name)))
        yield Mappings(layer, c_wide, m_wide, loops)


def _chosen(mappings: Mappings, which: Any) -> Mappings:
    chosen = {
        level: {name: values[which] for name, values in loops.items()}
        for level, loops in mappings.loops.items()
    }
    return replace(mappings, loops=chosen)


def _least_energy_pj(mappings: Mappings, inner: str, design: AcceleratorDesign) -> Floats:
    """Return a lower bound of the energy of each split; infinite where no mapping fits."""
    tiles: dict[tuple[str, bool], Any] = {}
    costs: dict[tuple[str, bool], Any] = {}
    for tensor, keep in product(_TENSORS, (False, True)):
        ways = [mappings.words(tensor, (*outer, inner), keep) for outer in BEST_OUTER[tensor]]
        tiles[tensor, keep] = ways[0].tile
        costs[tensor, keep] = np.minimum.reduce([each.energy_pj(design) for each in ways])
    least = np.full(len(mappings.loops["dram"]["C"]), np.inf)
    for kept in _WAYS_TO_KEEP:
        chosen = list(zip(_TENSORS, kept, strict=True))
        fits = sum(tiles[key] for key in chosen) <= design.buffer_words
        least = np.where(fits, np.minimum(least, sum(costs[key] for key in chosen)), least)
    return least + design.energy.mac * mappings.layer.macs


def _evaluate(
    mappings: Mappings, inner: str, design: AcceleratorDesign, best: _Best | None
) -> _Best | None:
    """Compare all orders and all choices of tensors to keep; return the best so far."""
    for outer in product(DRAM_ORDERS, BUFFER_ORDERS):
        orders = (*outer, inner)
        words = {
            (tensor, kept): mappings.words(tensor, orders, kept)
            for tensor, kept in product(_TENSORS, (False, True))
        }
        costs = {key: each.energy_pj(design) for key, each in words.items()}
        for kept in _WAYS_TO_KEEP:
            chosen = list(zip(_TENSORS, kept, strict=True))
            parts = [words[key] for key in chosen]
            energy = design.energy.mac * mappings.layer.macs + sum(costs[key] for key in chosen)
            cycles = np.maximum(
                np.maximum(
                    mappings.cycles, sum(w.reads for w in parts) / design.buffer_reads_per_cycle
                ),
                sum(w.writes for w in parts) / design.buffer_writes_per_cycle,
            )
            fits = np.asarray(sum(w.tile for w in parts) <= design.buffer_words)
            cycles = np.where(fits, np.ceil(cycles), np.inf)
            fewest = float(cycles.min())
            if np.isinf(fewest) or (best is not None and fewest > best.cycles):
                continue
            energy = np.where(cycles == fewest, energy, np.inf)
            at = int(energy.argmin())
            least = float(energy[at])
            if best is None or (fewest, least) < (best.cycles, best.energy_pj):
                best = _Best(fewest, least, _chosen(mappings, [at]), orders, kept)
    return best


def _described(best: _Best, design: AcceleratorDesign, evaluated: int, space: int) -> Mapped:
    mapping, orders, kept = best.mapping, best.orders, best.kept
    cost = design.energy
    chosen = list(zip(_TENSORS, kept, strict=True))
    parts = [mapping.words(tensor, orders, keep) for tensor, keep in chosen]

    def total(words: str) -> float:
        return float(sum(np.asarray(getattr(part, words)).sum() for part in parts))

    return Mapped(
        layer=mapping.layer,
        c_wide=mapping.c_wide,
        m_wide=mapping.m_wide,
        cycles=int(best.cycles),
        energy_pj={
            "dram": total("dram") * cost.dram,
            "buffer": total("reads") * cost.buffer_read + total("writes") * cost.buffer_write,
            "scratchpad": total("scratchpad") * cost.scratchpad,
            "registers": total("registers") * cost.register,
            "mac": mapping.layer.macs * cost.mac,
        },
        loops={
            level: {name: int(values[0]) for name, values in loops.items()}
            for level, loops in mapping.loops.items()
        },
        orders=orders,
        kept=tuple(tensor for tensor, keep in chosen if keep),
        evaluated=evaluated * len(DRAM_ORDERS) * len(BUFFER_ORDERS) * len(_WAYS_TO_KEEP),
        space=space * ALL_ORDERS * len(_WAYS_TO_KEEP),
        validated=True,
    )

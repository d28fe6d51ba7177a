"""The words of weights, inputs and outputs that a mapping moves at each level, and their energy.

The counting rules are those of Timeloop. Figures are arrays with one value for each mapping.

A tile is fetched from the level above as often as the product of the loops from the innermost
relevant one with more than one pass outward. The loops inside that one reuse the tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.accelerator.design import AcceleratorDesign
from stepscope.accelerator.layer import Layer

Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]
LEVELS = ("dram", "buffer", "scratchpad")
Orders = tuple[str, str, str]  # of the loops of each level

# The dimensions that a tensor's tile depends on; over the others it is reused.
RELEVANT = {"weights": "CMRS", "inputs": "CPQRS", "outputs": "MPQ"}


@dataclass(frozen=True)
class Reuse:
    """How often a tile is used before the next; `passes` where the level's loops do not end it."""

    times: Floats
    passes: Truths

    def then(self, outer: Reuse) -> Reuse:
        """Continue with the loops of the next level outward."""
        times = self.times * np.where(self.passes, outer.times, 1.0)
        return Reuse(times, self.passes & outer.passes)


def reuse_of(tensor: str, order: Sequence[str], loops: Mapping[str, Floats]) -> Reuse:
    """Return the reuse of a tensor's tile in the loops of one level, the innermost first."""
    size = len(next(iter(loops.values())))
    times, passes = np.ones(size), np.ones(size, dtype=bool)
    for dimension in order:
        passed = loops[dimension]
        if dimension in RELEVANT[tensor]:
            passes = passes & (passed == 1)
        else:
            times = times * np.where(passes, passed, 1.0)
    return Reuse(times, passes)


@dataclass(frozen=True)
class Words:
    """The words of one tensor: its tile in the buffer, if kept there, and the transfers.

    `reads` and `writes` are of the buffer; `dram` counts both directions. `registers` and
    `scratchpad` are sums over all PEs and do not depend on whether the tensor is kept.
    """

    tile: Floats | float
    reads: Floats | float
    writes: Floats | float
    dram: Floats | float
    registers: Floats | float
    scratchpad: Floats | float

    def energy_pj(self, design: AcceleratorDesign) -> Floats:
        """Return the energy of all transfers."""
        cost = design.energy
        return np.asarray(
            self.reads * cost.buffer_read
            + self.writes * cost.buffer_write
            + self.dram * cost.dram
            + self.registers * cost.register
            + self.scratchpad * cost.scratchpad
        )


@dataclass(frozen=True, eq=False)
class Mappings:
    """Splits of the loops of a layer on an array of `c_wide` by `m_wide` PEs, one per element.

    `loops` has the bounds of the loops by level and dimension.
    """

    layer: Layer
    c_wide: int
    m_wide: int
    loops: dict[str, dict[str, Floats]]
    _known: dict[tuple[str, str, str], Reuse] = field(init=False, default_factory=dict)

    @cached_property
    def cycles(self) -> float:
        """The cycles of computation: every PE multiplies once per cycle."""
        layer = self.layer
        steps = -(-layer.C // self.c_wide) * -(-layer.M // self.m_wide)
        return float(steps * layer.P * layer.Q * layer.R * layer.S)

    @property
    def pes(self) -> int:
        """The number of PEs in use."""
        return self.c_wide * self.m_wide

    @cached_property
    def outputs(self) -> float:
        """The words of the output, each counted once."""
        return float(-(-self.layer.M // self.m_wide) * self.m_wide * self.layer.P * self.layer.Q)

    def _in_buffer(self, dimension: str) -> Floats:
        return self.loops["buffer"][dimension] * self.loops["scratchpad"][dimension]

    @cached_property
    def _channels(self) -> tuple[Floats, Floats]:
        return self._in_buffer("C") * self.c_wide, self._in_buffer("M") * self.m_wide

    def _reuse(self, tensor: str, orders: Orders) -> tuple[Reuse, Reuse, Reuse]:
        """Return a tensor's reuse above the buffer, above the scratchpad, and over all loops."""
        dram, buffer, scratchpad = (
            self._level_reuse(tensor, level, order)
            for level, order in zip(LEVELS, orders, strict=True)
        )
        above = buffer.then(dram)
        return dram, above, scratchpad.then(above)

    def _level_reuse(self, tensor: str, level: str, order: str) -> Reuse:
        """Compute a level once: each of its orders is combined with every order of the others."""
        key = (tensor, level, order)
        if key not in self._known:
            self._known[key] = reuse_of(tensor, order, self.loops[level])
        return self._known[key]

    @cached_property
    def _dram_passes(self) -> Floats:
        return np.asarray(np.prod([*self.loops["dram"].values()], axis=0))

    @cached_property
    def _outer_passes(self) -> Floats:
        return np.asarray(self._dram_passes * np.prod([*self.loops["buffer"].values()], axis=0))

    def words(self, tensor: str, orders: Orders, kept: bool) -> Words:
        """Count the words of a tensor that is `kept` in the buffer, or not."""
        counts = {"weights": self._weights, "inputs": self._inputs, "outputs": self._outputs}
        return counts[tensor](orders, kept)

    def _weights(self, orders: Orders, kept: bool) -> Words:
        """Count the words of the weights: each PE holds its own."""
        layer = self.layer
        above_buffer, above_scratchpad, everywhere = self._reuse("weights", orders)
        scratchpad = self.loops["scratchpad"]
        in_scratchpad = scratchpad["C"] * scratchpad["M"] * layer.R * layer.S
        fills = self._outer_passes / above_scratchpad.times * in_scratchpad
        fetched = self.cycles / everywhere.times
        words = fills * self.pes
        inner = {
            "registers": (fetched + self.cycles) * self.pes,
            "scratchpad": (fills + fetched) * self.pes,
        }
        if not kept:
            return Words(0.0, 0.0, 0.0, words, **inner)
        c_words, m_words = self._channels
        tile = c_words * m_words * layer.R * layer.S
        filled = self._dram_passes / above_buffer.times * tile
        return Words(tile, words, filled, filled, **inner)

    def _inputs(self, orders: Orders, kept: bool) -> Words:
        """Count the words of the inputs: PEs along M share them."""
        above_buffer, _, everywhere = self._reuse("inputs", orders)
        fetched = self.cycles / everywhere.times
        words = fetched * self.c_wide
        registers = (fetched + self.cycles) * self.pes
        if not kept:
            return Words(0.0, 0.0, 0.0, words, registers, 0.0)
        c_words, _ = self._channels
        rows, columns = self._window("P"), self._window("Q")
        tile = c_words * rows * columns
        times = self._dram_passes / above_buffer.times
        filled = times * c_words * self._with_overlap(orders[0], rows, columns)
        return Words(tile, words, filled, filled, registers, 0.0)

    def _outputs(self, orders: Orders, kept: bool) -> Words:
        """Count the words of the outputs: PEs along C add up to one word."""
        above_buffer, _, everywhere = self._reuse("outputs", orders)
        passed = self.cycles / everywhere.times
        words = passed * self.m_wide
        unfinished = self.cycles - self.outputs / self.m_wide
        registers = (self.cycles + passed + unfinished) * self.pes
        if not kept:
            return Words(0.0, 0.0, 0.0, 2 * words - self.outputs, registers, 0.0)
        _, m_words = self._channels
        tile = m_words * self._in_buffer("P") * self._in_buffer("Q")
        drained = self._dram_passes / above_buffer.times * tile
        read = words - self.outputs
        return Words(tile, read, words + drained, 2 * drained - self.outputs, registers, 0.0)

    def _window(self, dimension: str, times: Floats | float = 1.0) -> Floats:
        """Return the rows (P) or columns (Q) of the input that a tile of the output needs."""
        layer, stride = self.layer, self.layer.stride
        kernel = layer.R
        if dimension == "Q":
            kernel, stride = layer.S, stride if layer.stride_q is None else layer.stride_q
        return (self._in_buffer(dimension) * times - 1) * stride + kernel

    def _with_overlap(self, order: str, rows: Floats, columns: Floats) -> Floats:
        """Return the mean size of an input tile without the part left by the tile before.

        Tiles overlap only along P or Q, if that is the innermost DRAM loop with more than one pass.
        """
        size = rows * columns
        inside = np.ones(len(rows), dtype=bool)
        for dimension in order:
            passes = self.loops["dram"][dimension]
            if dimension in "PQ":
                own, other = (rows, columns) if dimension == "P" else (columns, rows)
                run = np.minimum(self._window(dimension, passes), passes * own)
                size = np.where(inside & (passes > 1), run / passes * other, size)
            inside = inside & (passes == 1)
        return size


# The orders, in DRAM and in the buffer, in which a tensor is reused the most.
BEST_OUTER = {
    "weights": (("PQCM", "PQCM"), ("QPCM", "PQCM")),
    "inputs": (("MCPQ", "MCPQ"), ("PQCM", "MCPQ"), ("QPCM", "MCPQ")),
    "outputs": (("CMPQ", "CMPQ"),),
}

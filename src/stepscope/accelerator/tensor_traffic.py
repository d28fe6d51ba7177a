"""What weights, inputs and outputs cost in a mapping: words moved at every level, and energy.

The counting rules are those of Timeloop's own model. All figures are arrays, one value a mapping.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.accelerator.design import AcceleratorDesign
from stepscope.accelerator.layer import Layer
from stepscope.accelerator.loop_nests import Floats, Reuse, reuse_of

Orders = tuple[str, str, str]  # in DRAM, in the buffer, in the scratchpad


@dataclass(frozen=True)
class Words:
    """Words of one tensor: what it takes of the buffer if kept there, and what moves.

    `reads` and `writes` are the buffer's, `dram` both ways. `registers` and `scratchpad` are of all
    PEs, and the same whether it is kept or not.
    """

    tile: Floats | float
    reads: Floats | float
    writes: Floats | float
    dram: Floats | float
    registers: Floats | float
    scratchpad: Floats | float

    def energy_pj(self, design: AcceleratorDesign) -> Floats:
        """Return what all of it costs."""
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
    """Splits of a layer's loops on an array of PEs, `c_wide` by `m_wide`, one mapping an element.

    `dram`, `buffer` and `scratchpad` have the loops of each level by dimension.
    """

    layer: Layer
    c_wide: int
    m_wide: int
    dram: dict[str, Floats]
    buffer: dict[str, Floats]
    scratchpad: dict[str, Floats]
    _known: dict[tuple[str, str, str], Reuse] = field(init=False, default_factory=dict)

    @cached_property
    def cycles(self) -> float:
        """Cycles in which every PE multiplies once."""
        layer = self.layer
        steps = -(-layer.C // self.c_wide) * -(-layer.M // self.m_wide)
        return float(steps * layer.P * layer.Q * layer.R * layer.S)

    @property
    def pes(self) -> int:
        """PEs that work."""
        return self.c_wide * self.m_wide

    @cached_property
    def outputs(self) -> float:
        """Words that come out, each once."""
        return float(-(-self.layer.M // self.m_wide) * self.m_wide * self.layer.P * self.layer.Q)

    def _in_buffer(self, dimension: str) -> Floats:
        return self.buffer[dimension] * self.scratchpad[dimension]

    @cached_property
    def _channels(self) -> tuple[Floats, Floats]:
        return self._in_buffer("C") * self.c_wide, self._in_buffer("M") * self.m_wide

    def _reuse(self, tensor: str, orders: Orders) -> tuple[Reuse, Reuse, Reuse]:
        """Return a tensor's reuse above the buffer, above the scratchpad, and over all loops."""
        names = ("dram", "buffer", "scratchpad")
        dram, buffer, scratchpad = (
            self._level_reuse(tensor, level, order)
            for level, order in zip(names, orders, strict=True)
        )
        above = buffer.then(dram)
        return dram, above, scratchpad.then(above)

    def _level_reuse(self, tensor: str, level: str, order: str) -> Reuse:
        """Work a level out once: each of its orders comes with every order of the others."""
        key = (tensor, level, order)
        if key not in self._known:
            self._known[key] = reuse_of(tensor, order, getattr(self, level))
        return self._known[key]

    @cached_property
    def _dram_passes(self) -> Floats:
        return np.asarray(np.prod([*self.dram.values()], axis=0))

    @cached_property
    def _outer_passes(self) -> Floats:
        return np.asarray(self._dram_passes * np.prod([*self.buffer.values()], axis=0))

    def weights(self, orders: Orders, *, kept: bool) -> Words:
        """Count what the weights move: every PE holds its own."""
        layer = self.layer
        above_buffer, above_scratchpad, everywhere = self._reuse("weights", orders)
        in_scratchpad = self.scratchpad["C"] * self.scratchpad["M"] * layer.R * layer.S
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

    def inputs(self, orders: Orders, *, kept: bool) -> Words:
        """Count what the inputs move: PEs in the direction of M share them."""
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

    def outputs_of(self, orders: Orders, *, kept: bool) -> Words:
        """Count what the outputs move: PEs in the direction of C add up to one word."""
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
        """Return the rows, or columns, of the input that some of the output need."""
        layer = self.layer
        kernel, stride = (
            (layer.R, layer.stride) if dimension == "P" else (layer.S, _stride_q(layer))
        )
        return (self._in_buffer(dimension) * times - 1) * stride + kernel

    def _with_overlap(self, order: str, rows: Floats, columns: Floats) -> Floats:
        """Return the mean size of an input tile, without what the one before left in the buffer.

        That is so along P or Q alone, where it is the innermost loop of DRAM that is more than one
        pass.
        """
        size = rows * columns
        inside = np.ones(len(rows), dtype=bool)
        for dimension in order:
            passes = self.dram[dimension]
            if dimension in "PQ":
                own, other = (rows, columns) if dimension == "P" else (columns, rows)
                run = np.minimum(self._window(dimension, passes), passes * own)
                size = np.where(inside & (passes > 1), run / passes * other, size)
            inside = inside & (passes == 1)
        return size


def _stride_q(layer: Layer) -> int:
    return layer.stride if layer.stride_q is None else layer.stride_q


# The orders, in DRAM and in the buffer, in which a tensor is reused the most.
BEST_OUTER = {
    "weights": (("PQCM", "PQCM"), ("QPCM", "PQCM")),
    "inputs": (("MCPQ", "MCPQ"), ("PQCM", "MCPQ"), ("QPCM", "MCPQ")),
    "outputs": (("CMPQ", "CMPQ"),),
}

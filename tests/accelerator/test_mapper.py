"""The best mapping of a layer: what Timeloop printed, and no mapping that is better."""

from __future__ import annotations

import csv
from itertools import permutations
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.accelerator.design import load_design
from stepscope.accelerator.layer import Layer, read_layer
from stepscope.accelerator.mapper import Mapped, Widths, map_layer
from stepscope.errors import RequestError

DESIGN = load_design()
FACTS = Path(__file__).parents[3] / "shared" / "accel"

# Layers as C, M, P, Q, R, S, stride; the widths of M and C; what Timeloop's model printed.
TIMELOOP = [
    ((3, 64, 55, 55, 11, 11, 4), (8, 16), 893.22, 2928200),
    ((64, 64, 32, 32, 3, 3, 1), (8, 16), 480.00, 294912),
    ((64, 128, 16, 16, 1, 1, 2), (8, 16), 32.08, 16384),
    ((512, 512, 7, 7, 3, 3, 1), (8, 16), 1703.64, 903168),
    ((4096, 1000, 1, 1, 1, 1, 1), (8, 16), 580.47, 32000),
    ((1, 6, 28, 28, 5, 5, 1), (6, 1), 2.27, 19600),
    ((400, 120, 1, 1, 1, 1, 1), (8, 16), 6.86, 375),
]


def is_timeloops(found: Mapped, energy_uj: float, cycles: int) -> bool:
    return found.cycles == cycles and abs(found.energy_uj - energy_uj) <= max(
        0.011, 1e-4 * energy_uj
    )


@pytest.mark.parametrize(("bounds", "widths", "energy_uj", "cycles"), TIMELOOP)
def test_a_layers_figures_are_timeloops(bounds, widths, energy_uj, cycles):
    found = map_layer(Layer(*bounds), DESIGN, Widths(*widths))
    assert is_timeloops(found, energy_uj, cycles)
    assert found.validated


@pytest.mark.skipif(not FACTS.is_dir(), reason="the tables of facts are not beside the project")
def test_every_row_of_the_tables_is_met():
    for row in rows_of("timeloop-best-mapping-layers.csv"):
        layer = Layer(*(int(row[name]) for name in "CMPQRS"), int(row["stride"]))
        found = map_layer(layer, DESIGN, Widths(int(row["max_M"]), int(row["max_C"])))
        energy_uj, cycles = float(row["timeloop_energy_uJ"]), int(row["timeloop_cycles"])
        assert is_timeloops(found, energy_uj, cycles), row
    for row in rows_of("timeloop-published-layers.csv"):
        layer = Layer(*(int(row[name]) for name in "CMPQRS"), int(row["Hstride"]))
        found = map_layer(layer, DESIGN, Widths(8, 16))
        assert found.cycles == int(row["cycles"]), row
        assert found.energy_uj <= float(row["energy_uJ"]) * 1.0005, row


def rows_of(table: str) -> list[dict[str, str]]:
    with (FACTS / table).open() as file:
        return list(csv.DictReader(file))


# One mapping, counted one by one and in plain numbers, to compare the search with.

RELEVANT = {"W": "CMRS", "I": "CPQRS", "O": "MPQ"}
Loops = list[tuple[str, int]]  # the innermost first


def refetched(tensor: str, loops: Loops) -> int:
    """Multiply the loops from the innermost relevant one that is more than one pass outward."""
    for at, (dimension, passes) in enumerate(loops):
        if dimension in RELEVANT[tensor] and passes > 1:
            return prod(passes for _, passes in loops[at:])
    return 1


def cost_of(
    layer: Layer, wide: tuple[int, int], levels: list[Loops], keep: tuple[bool, bool, bool]
) -> tuple[float, float] | None:
    """Return cycles and picojoules, or None where it does not fit."""
    c_wide, m_wide = wide
    dram, buffer, spad = levels
    cost = DESIGN.energy
    pes = c_wide * m_wide
    cycles = prod(passes for loops in levels for _, passes in loops)
    size = {d: dict(buffer).get(d, 1) * dict(spad)[d] for d in "CMPQ"}
    rows = (size["P"] - 1) * layer.stride + layer.R
    columns = (size["Q"] - 1) * layer.stride + layer.S
    c_words, m_words = size["C"] * c_wide, size["M"] * m_wide
    tiles = (c_words * m_words * layer.R * layer.S, c_words * rows * columns)
    tiles = (*tiles, m_words * size["P"] * size["Q"])
    inner = dict(spad)
    if inner["C"] * inner["M"] * layer.R * layer.S > DESIGN.scratchpad_words:
        return None
    if sum(tile for tile, kept in zip(tiles, keep, strict=True) if kept) > DESIGN.buffer_words:
        return None
    above_spad, everything = buffer + dram, spad + buffer + dram
    fills = refetched("W", above_spad) * inner["C"] * inner["M"] * layer.R * layer.S
    fetched = {tensor: refetched(tensor, everything) for tensor in "WIO"}
    made = layer.M * layer.P * layer.Q
    words = (fills * pes, fetched["I"] * c_wide, fetched["O"] * m_wide)
    energy = cost.mac * layer.macs + cost.scratchpad * pes * (fills + fetched["W"])
    energy += cost.register * pes * (sum(fetched.values()) + 4 * cycles - made // m_wide)
    input_tile = tiles[1]
    innermost = next((d for d, passes in dram if passes > 1), "")
    passes = dict(dram).get(innermost, 1)
    if innermost == "P":
        run = min((size["P"] * passes - 1) * layer.stride + layer.R, passes * rows)
        input_tile = c_words * run / passes * columns
    elif innermost == "Q":
        run = min((size["Q"] * passes - 1) * layer.stride + layer.S, passes * columns)
        input_tile = c_words * rows * run / passes
    filled = (refetched("W", dram) * tiles[0], refetched("I", dram) * input_tile)
    filled = (*filled, refetched("O", dram) * tiles[2])
    reads = writes = 0.0
    for number, tensor in enumerate("WIO"):
        moved, from_dram = words[number], filled[number]
        if not keep[number]:
            energy += cost.dram * (moved if tensor != "O" else 2 * moved - made)
        elif tensor == "O":
            reads, writes = reads + moved - made, writes + moved + from_dram
            energy += cost.dram * (2 * from_dram - made)
        else:
            reads, writes = reads + moved, writes + from_dram
            energy += cost.dram * from_dram
    energy += cost.buffer_read * reads + cost.buffer_write * writes
    return max(cycles, reads / 16, writes / 16), energy


def split_in_three(draw: st.DrawFn, bound: int) -> tuple[int, int, int]:
    outer = draw(st.sampled_from([d for d in range(1, bound + 1) if bound % d == 0]))
    rest = bound // outer
    middle = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    return outer, middle, rest // middle


LAYERS = [
    Layer(32, 16, 6, 6, 3, 3),
    Layer(48, 24, 8, 4, 1, 1, 2),
    Layer(3, 8, 12, 12, 5, 5, 2),
    Layer(64, 40),
]


@st.composite
def any_mapping(draw: st.DrawFn) -> tuple[Layer, list[Loops], tuple[bool, bool, bool]]:
    layer = draw(st.sampled_from(LAYERS))
    bounds = {"C": layer.C // min(layer.C, 16), "M": layer.M // 8, "P": layer.P, "Q": layer.Q}
    factors = {name: split_in_three(draw, bound) for name, bound in bounds.items()}
    orders = ["".join(each) for each in permutations("CMPQ")]
    dram, buffer = (draw(st.sampled_from(orders)) for _ in range(2))
    inside = "".join(draw(st.permutations("PQRS")))
    spad = inside + draw(st.sampled_from(["CM", "MC"]))
    inner = {name: three[2] for name, three in factors.items()} | {"R": layer.R, "S": layer.S}
    levels = [
        [(name, factors[name][0]) for name in dram],
        [(name, factors[name][1]) for name in buffer],
        [(name, inner[name]) for name in spad],
    ]
    keep = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    return layer, levels, keep


@settings(max_examples=600, deadline=None)
@given(any_mapping())
def test_no_mapping_whatever_is_better_than_the_best(drawn):
    layer, levels, keep = drawn
    wide = (min(layer.C, 16), 8)
    cost = cost_of(layer, wide, levels, keep)
    best = map_layer(layer, DESIGN, Widths(8, 16))
    if cost is not None:
        cycles, energy_pj = cost
        assert best.cycles <= cycles
        if cycles == best.cycles:
            assert best.energy_uj * 1e6 <= energy_pj * (1 + 1e-12)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_best_mapping_counted_one_by_one_costs_what_was_said(layer):
    best = map_layer(layer, DESIGN, Widths(8, 16))
    levels = [
        [(name, best.loops[level][name]) for name in order]
        for level, order in zip(best.loops, best.orders, strict=True)
    ]
    weights, inputs, outputs = (each in best.kept for each in ("weights", "inputs", "outputs"))
    cost = cost_of(layer, (best.c_wide, best.m_wide), levels, (weights, inputs, outputs))
    assert cost[1] == pytest.approx(best.energy_uj * 1e6, rel=1e-12)
    assert cost[0] == best.cycles


def test_free_widths_take_the_fewest_cycles_and_the_least_waste():
    head = map_layer(Layer(84, 10), DESIGN)
    assert (head.m_wide, head.c_wide) == (10, 14)
    assert head.cycles == 6
    assert head.validated


def test_a_bound_that_the_width_does_not_divide_is_estimated_and_marked():
    found = map_layer(Layer(84, 10), DESIGN, Widths(8, 16))
    assert (found.cycles, found.validated) == (12, False)


def test_groups_and_samples_are_layers_of_their_own():
    one = map_layer(Layer(8, 8, 4, 4, 3, 3), DESIGN)
    grouped = map_layer(Layer(32, 32, 4, 4, 3, 3, groups=4, batch=2), DESIGN)
    assert grouped.cycles == 8 * one.cycles
    assert grouped.energy_uj == pytest.approx(8 * one.energy_uj)
    assert not grouped.validated


def test_the_same_layer_is_mapped_the_same_way_each_time():
    map_layer.cache_clear()
    first = map_layer(Layer(*TIMELOOP[1][0]), DESIGN)
    map_layer.cache_clear()
    assert map_layer(Layer(*TIMELOOP[1][0]), DESIGN) == first


def test_most_of_the_space_is_ruled_out_unseen():
    found = map_layer(Layer(*TIMELOOP[1][0]), DESIGN, Widths(8, 16))
    assert 0 < found.evaluated < 0.001 * found.space


@pytest.mark.parametrize(
    ("layer", "widths", "said"),
    [
        (Layer(64, 64), Widths(32, 1), "at most 16x16"),
        (Layer(3, 8, 4, 4, 14, 14), Widths(), "one kernel of 14x14, 196 words"),
        (Layer(512, 512, 5040, 5040, 3, 3), Widths(), "ways, and at most"),  # would take hours
    ],
)
def test_a_layer_that_the_design_or_the_search_cannot_hold_is_refused(layer, widths, said):
    with pytest.raises(RequestError, match=said):
        map_layer(layer, DESIGN, widths)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("C=64", "no M, P, Q, R, S"),
        ("C=0,M=1,P=1,Q=1,R=1,S=1", "found C=0"),
        ("C=x", "found 'C=x'"),
        ("C=1,C=2", "found 'C=2'"),
        ("K=3", "found 'K=3'"),
        ("", "found ''"),
        ("C=-1,M=1", "found 'C=-1'"),
        (f"C={10**12 - 1},M=1,P=1,Q=1,R=1,S=1", "at most 1,000,000,000, found C=9{12}"),
        ("C=8,M=16,P=4,Q=4,R=3,S=3,groups=3", "groups that divide"),
    ],
)
def test_a_layer_that_cannot_be_read_is_refused_by_name(text, said):
    with pytest.raises(RequestError, match=f"layer: wanted .*{said}"):
        read_layer(text)


def test_a_large_prime_is_mapped():
    assert map_layer(Layer(999_999_937, 1), DESIGN).cycles == -(-999_999_937 // 16)


def test_a_layer_is_read_with_its_stride_and_groups():
    read = read_layer("C=8, M=16,P=4,Q=4,R=3,S=3,stride=2,groups=4")
    assert read == Layer(8, 16, 4, 4, 3, 3, 2, groups=4)

"""Lines of many steps at once: the same as those of the steps one by one."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stepscope.records import schema
from stepscope.trace.detect.row_builder import PlainRows

# Around the second, from which on the quick way does not do.
times_ns = st.integers(0, 2_000_000) | st.sampled_from([999_999_999, 1_000_000_000, 3_000_000_000])
short_ns = st.integers(0, 90_000_000)


@st.composite
def plain_rows(draw: st.DrawFn, *, quick: bool) -> PlainRows:
    """Draw rows that can all be written the quick way, or rows of any kind."""
    steps = draw(st.integers(1, 4))
    some_ns, no = (short_ns, st.nothing()) if quick else (times_ns, st.none())

    def column(each: st.SearchStrategy) -> list:
        return draw(st.lists(each, min_size=steps, max_size=steps))

    spent = [column(some_ns) for _ in schema.PHASES]
    detail = schema.FULL if quick else draw(st.sampled_from([schema.FULL, schema.OFF]))
    return PlainRows(
        draw(st.integers(0, 10**14)),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 999)),
        column(st.integers(0, 10**14)),
        column(no | st.integers(0, 512)),
        spent,
        [sum(each) for each in zip(*spent, strict=True)],
        column(no | st.tuples(st.integers(-1, 3), times_ns, some_ns, some_ns | st.none())),
        column(no | st.floats() | st.just(math.nan)),
        detail,
        [None] * steps if quick else column(no | st.floats(0, 5)),
    )


@given(plain_rows(quick=True) | plain_rows(quick=False))
def test_rows_at_once_are_the_lines_of_their_steps(rows: PlainRows) -> None:
    lines = str(rows).split("\n")
    assert lines == [str(row) for row in rows]
    assert {len(line.split(",")) for line in lines} == {len(schema.STEP_COLUMNS)}


@given(plain_rows(quick=True))
def test_most_rows_are_written_the_quick_way(rows: PlainRows) -> None:
    assert rows._lines() is not None


def test_every_figure_is_written_to_the_nanosecond() -> None:
    spent = [[1_000_001], [2], [3_000_000], [40], [5], [7]]
    load = (-1, 1_011, 999_999_999, 12)
    rows = PlainRows(
        *(1_000, 1, 2, [12_000_001_003], [8], spent, [4_000_055], [load], [0.5]),
        *(schema.FULL, [None]),
    )
    assert str(rows) == (
        "1,2,12.000000003,8,0.001000001,0.999999999,0.000000002,0.003000000,0.000000040,"
        "0.000000005,0.000000007,0.004000055,0.5,0.000000012,,,,,,0.000000011,-1,full,,"
    )

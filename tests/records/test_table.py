"""A table of any length: columns of numbers that are small in memory and read like lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.records.table import Numbers, read_table

FIELDS = st.one_of(st.just(""), st.floats(-1e9, 1e9).map(repr), st.sampled_from(["nan", "x", "1,"]))


def written(path: Path, header: str, lines: Sequence[str]) -> Path:
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return path


def test_a_column_of_known_numbers_takes_eight_bytes_each(tmp_path: Path) -> None:
    rows = [f"1,{number},{number / 8},word" for number in range(5000)]
    table = read_table(written(tmp_path / "any.csv", "epoch,step,step_s,detail", rows))
    assert isinstance(table["step"], Numbers)
    assert table["step"].itemsize == table["step_s"].itemsize == 8  # type: ignore[attr-defined]
    assert table["step"] == list(range(5000))
    assert table["step_s"][-1] == 4999 / 8
    assert len({id(word) for word in table["detail"]}) == 1


def test_one_unknown_value_far_down_leaves_those_before_it(tmp_path: Path) -> None:
    rows = [str(number) for number in range(4500)]
    table = read_table(
        written(tmp_path / "any.csv", "step,loss", [*(f"{r},1" for r in rows), "9,"])
    )
    assert table["loss"] == [*[1.0] * 4500, None]
    assert table["step"] != table["loss"]
    assert table["step"][-1] == 9


def test_bad_lines_far_apart_are_left_out_alone(tmp_path: Path) -> None:
    rows = [f"{number},0.5" for number in range(6000)]
    rows[10], rows[4100], rows[5999] = "1,2,3", f"{2**70},0.5", "5999,zero"
    table = read_table(written(tmp_path / "any.csv", "step,step_s", rows))
    assert table.cut_lines == 3
    assert table["step"] == [n for n in range(6000) if n not in (10, 4100, 5999)]


def test_lines_of_other_lengths_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "any.csv", "step,step_s", ["1,2,3", "4", "5,6"]))
    assert (table["step"], table.cut_lines) == ([5], 2)


@settings(deadline=None)
@given(st.lists(st.tuples(FIELDS, FIELDS), max_size=40))
def test_what_can_be_read_is_read_whatever_stands_beside_it(
    tmp_path_factory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("table") / "any.csv"
    table = read_table(written(path, "a,b", [",".join(row) for row in rows]))
    good = [row for row in rows if not {"x", "1,"} & {*row}]
    wanted = [repr([float(f) if f else None for f in row]) for row in good]
    assert [repr([row["a"], row["b"]]) for row in table.rows()] == wanted
    assert table.cut_lines == len(rows) - len(good)

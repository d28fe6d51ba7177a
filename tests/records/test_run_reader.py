"""The reading side, on folders that are whole, cut short, old, new, or not folders at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.records import schema
from stepscope.records.run_reader import Table, load_run, read_table

HEADER = ",".join(schema.STEP_COLUMNS)


def make_run(path: Path, **info: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "run.json").write_text(json.dumps({"schema": 1, **info}))
    return path


def table_of(path: Path, text: str) -> Table:
    path = path / "t.csv"
    path.write_text(text)
    return read_table(path)


def test_values_have_the_type_of_their_column_and_empty_is_unknown(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        "epoch,split,total_s,samples\n1,train,2.5,64\n1,test,,\n",
    )
    assert list(table.rows()) == [
        {"epoch": 1, "split": "train", "total_s": 2.5, "samples": 64},
        {"epoch": 1, "split": "test", "total_s": None, "samples": None},
    ]
    assert isinstance(table["epoch"][0], int)
    assert isinstance(table["total_s"][0], float)


def test_zero_is_zero_and_not_unknown(tmp_path: Path) -> None:
    assert table_of(tmp_path, "data_s,workers\n0,0\n").columns == {"data_s": [0.0], "workers": [0]}


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    # Cut in the last number, so that the line has all of its fields and looks whole.
    table = table_of(tmp_path, "step,step_s\n1,0.125\n2,0.1")
    assert table.columns == {"step": [1], "step_s": [0.125]}


@pytest.mark.parametrize(
    "garbage",
    [b"1", b"1,2,3", b"", b"x,y", b'"', b'1,"2', b"\0\0\0\0", b"\xff\xfe,\x80", b"1.5,2", b"\r"],
)
def test_a_garbage_line_is_left_out_and_the_lines_around_it_are_not(
    tmp_path: Path, garbage: bytes
) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(b"step,step_s\n1,0.5\n" + garbage + b"\n3,0.75\n")
    table = read_table(file)
    assert table.columns == {"step": [1, 3], "step_s": [0.5, 0.75]}
    assert table.cut_lines >= 1


def test_line_ends_of_another_system_are_read(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(b"step,detail\r\n1,full\r\n")
    assert read_table(file).columns == {"step": [1], "detail": ["full"]}


def test_a_missing_file_is_a_table_without_rows(tmp_path: Path) -> None:
    table = read_table(tmp_path / "none.csv")
    assert (len(table), table["epoch"], list(table.rows())) == (0, [], [])


def test_an_empty_file_is_a_table_without_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path, "")
    assert (len(table), table["epoch"], list(table.rows())) == (0, [], [])


def test_a_column_that_the_file_lacks_is_unknown_throughout(tmp_path: Path) -> None:
    table = table_of(tmp_path, "step,step_s\n1,0.5\n2,0.5\n")
    assert table["idle_device_s"] == [None, None]


def test_a_column_appended_later_does_not_disturb_those_before_it(tmp_path: Path) -> None:
    table = table_of(tmp_path, "step,step_s,tokens_per_s\n1,0.5,7\n2,0.5,\n")
    assert table["step_s"] == [0.5, 0.5]
    assert table["tokens_per_s"] == [7.0, None]


def test_columns_are_found_by_name_in_whatever_order(tmp_path: Path) -> None:
    assert table_of(tmp_path, "step_s,step\n0.5,1\n").columns == {"step_s": [0.5], "step": [1]}


def test_a_run_is_read_from_its_folder_a_link_or_its_run_json(tmp_path: Path) -> None:
    path = make_run(tmp_path / "one", name="first", status="completed", spec={"lr": 1})
    (tmp_path / "latest").symlink_to("one")
    for way in (path, str(path), tmp_path / "latest", path / "run.json"):
        run = load_run(way)
        assert (run.path, run.info["name"], run.status) == (path.resolve(), "first", "completed")
        assert run.spec == {"lr": 1}


def test_a_run_under_way_has_no_summary_and_no_rows_yet(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "one", status="running", summary=None, spec=None))
    assert (run.summary, run.spec, run.events, len(run.steps)) == ({}, {}, [], 0)


def test_settings_that_no_version_of_ours_knows_are_kept_as_they_are(tmp_path: Path) -> None:
    asked = {"model": "later", "quantum": True, "lr": -1}
    assert load_run(make_run(tmp_path / "one", spec=asked)).spec == asked


def test_a_folder_of_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = make_run(tmp_path / "one", schema=schema.SCHEMA + 1)
    with pytest.raises(RequestError, match=r"newer stepscope.*Update") as caught:
        load_run(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("what", ["empty folder", "nothing", "file", "below a file", "NUL"])
def test_what_is_no_run_folder_is_refused_by_name(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty folder").mkdir()
    place = {"below a file": "file/runs", "NUL": "a\0b"}.get(what, what)
    with pytest.raises(RequestError) as caught:
        load_run(tmp_path / place)
    assert caught.value.exit_code == 2
    assert str(tmp_path / place) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"schema": "1"}', '{"schema": null}', '"schema"']
)
def test_a_run_json_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RequestError, match=r"run\.json"):
        load_run(tmp_path)


def test_a_run_json_that_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b'{"schema": 1, "name": "\xff"}')
    with pytest.raises(RequestError, match=r"run\.json"):
        load_run(tmp_path)


def test_lines_that_are_no_event_with_a_time_are_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "one")
    (path / "events.jsonl").write_bytes(
        b'{"event": "one", "time_s": 1}\nnot json\n[1]\n\n\xff\n'
        b'{"event": "never"}\n{"event": "never", "time_s": NaN}\n{"time_s": 2}\n'
        b'{"event": "two", "time_s": 2.5}\n{"event": "thr'
    )
    assert [event["event"] for event in load_run(path).events] == ["one", "two"]


seconds = st.floats(0, 1e5).map(lambda value: f"{value:.9f}")
maybe_seconds = seconds | st.just("")
losses = st.floats(allow_nan=False).map(repr)


@st.composite
def step_rows(draw: st.DrawFn) -> list[str]:
    rows = []
    for number in range(draw(st.integers(0, 4))):
        phases = [draw(maybe_seconds) for _ in range(8)]
        device = [draw(maybe_seconds) for _ in range(7)]
        fields = [str(draw(st.integers(1, 99))), str(number + 1), draw(seconds), "64", *phases]
        fields += [draw(losses), *device[:6], device[6], draw(st.sampled_from(["", "0", "11"]))]
        fields.append(draw(st.sampled_from(["full", "off", "layers"])))
        rows.append(",".join([*fields, draw(maybe_seconds)]))
    return rows


@pytest.fixture(scope="module")
def steps_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut") / "steps.csv"


@given(rows=step_rows(), data=st.data())
def test_steps_cut_at_any_byte_read_as_the_first_of_the_whole_rows(
    steps_file: Path, rows: list[str], data: st.DataObject
) -> None:
    assert all(row.count(",") == HEADER.count(",") for row in rows)
    text = "".join(f"{line}\n" for line in [HEADER, *rows]).encode()
    steps_file.write_bytes(text)
    whole = read_table(steps_file)
    assert (len(whole), whole.cut_lines) == (len(rows), 0)
    cut_at = data.draw(st.integers(0, len(text)))
    steps_file.write_bytes(text[:cut_at])
    cut = read_table(steps_file)
    assert list(cut.rows()) == list(whole.rows())[: max(0, text[:cut_at].count(b"\n") - 1)]


def test_one_file_cut_at_each_of_its_bytes_never_shows_a_number_that_was_not_written(
    tmp_path: Path,
) -> None:
    text = "epoch,step,step_s,detail\n1,1,0.123456789,full\n1,2,0.25,off\n12,3,7.5,full\n"
    whole = list(table_of(tmp_path, text).rows())
    assert len(whole) == 3
    for cut_at in range(len(text)):
        rows = list(table_of(tmp_path, text[:cut_at]).rows())
        assert rows == whole[: len(rows)]
        assert len(rows) == max(0, text[:cut_at].count("\n") - 1)

"""The reading side, on folders that are whole, cut short, old, new, or not folders at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import RequestError
from stepscope.records import schema
from stepscope.records.run_reader import load_run


def make_run(path: Path, **info: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "run.json").write_text(json.dumps({"schema": 1, **info}))
    return path


def test_a_run_is_read_from_its_folder_a_link_or_its_run_json(tmp_path: Path) -> None:
    asked = {"model": "later", "quantum": True, "lr": -1}  # of another version
    path = make_run(tmp_path / "one", name="first", status="completed", spec=asked)
    (tmp_path / "latest").symlink_to("one")
    for way in (path, str(path), tmp_path / "latest", path / "run.json"):
        run = load_run(way)
        assert (run.path, run.info["name"], run.status) == (path.resolve(), "first", "completed")
        assert run.spec == asked


def test_a_run_under_way_has_no_summary_and_no_rows_yet(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "one", status="running", summary=None, spec=None))
    assert (run.summary, run.spec, run.events, len(run.steps)) == ({}, {}, [], 0)


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
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"schema": "1"}',
        b'"schema"',
        b'{"schema": 1, "a": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_a_run_json_that_is_none_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RequestError, match=r"run\.json"):
        load_run(tmp_path)


def test_lines_that_are_no_event_with_a_time_are_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "one")
    deep = b"[" * 100_000 + b"\n"
    (path / "events.jsonl").write_bytes(
        deep + b'{"event": "one", "time_s": 1}\nnot json\n[1]\n\n\xff\n'
        b'{"event": "never"}\n{"event": "never", "time_s": NaN}\n{"time_s": 2}\n'
        b'{"event": "two", "time_s": 2.5}\n{"event": "thr'
    )
    assert [event["event"] for event in load_run(path).events] == ["one", "two"]

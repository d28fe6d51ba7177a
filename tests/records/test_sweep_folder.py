"""The sweep folder: read whole, old or hostile, and written one trial at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import RequestError
from stepscope.records.sweep_folder import Trial, create_sweep, load_sweep, load_sweep_of

PLAN = [Trial(0, {"workers": 0}, 1), Trial(1, {"workers": 2}, 1)]


def test_a_new_sweep_holds_its_whole_plan_and_is_the_latest(tmp_path: Path) -> None:
    folder = create_sweep(tmp_path, "my sweep", {"repeats": 1}, PLAN)

    assert load_sweep(tmp_path / "latest").trials == PLAN
    assert folder.path.name.endswith("-my-sweep")
    assert all(trial.is_missing for trial in load_sweep(folder.path).trials)


def test_what_became_of_a_trial_replaces_its_entry_and_no_other(tmp_path: Path) -> None:
    folder = create_sweep(tmp_path, "s", {}, PLAN)
    done = replace(PLAN[1], status="completed", metrics={"samples_per_s": 10.0})

    folder.put(done)

    assert load_sweep(folder.path).trials == [PLAN[0], done]


def test_a_trials_folder_has_a_name_that_is_safe_whatever_its_values(tmp_path: Path) -> None:
    folder = create_sweep(tmp_path, "s", {}, PLAN)
    trial = Trial(7, {"arg:--name": "../../<script>"}, 2)

    path = load_sweep(folder.path).folder_of(trial)

    assert path.parent == (folder.path / "trials").resolve()
    assert path.name.startswith("007-")


def test_a_sweep_of_a_later_version_with_more_fields_still_reads(tmp_path: Path) -> None:
    folder = create_sweep(tmp_path, "s", {}, PLAN)
    info = folder.read_info()
    info["trials"][0]["mood"] = "good"
    folder.write_info(info)

    assert load_sweep(folder.path).trials == PLAN


@pytest.mark.parametrize(
    "info",
    [
        "no json",
        [],
        {"schema": 1},
        {"schema": 1, "trials": {}},
        {"schema": 1, "trials": [{"index": 0}]},
        {"schema": "one", "trials": []},
        {"schema": 99, "trials": []},
        {"schema": 1, "trials": [{"index": 0, "values": {}, "repeat": 1, "run": "/etc"}]},
        {"schema": 1, "trials": [{"index": 0, "values": {}, "repeat": 1, "run": "trials/../.."}]},
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, info: Any) -> None:
    with pytest.raises(RequestError, match="not a sweep folder"):
        load_sweep(tmp_path)
    text = info if isinstance(info, str) else json.dumps(info)
    (tmp_path / "sweep.json").write_text(text)

    with pytest.raises(RequestError):
        load_sweep(tmp_path)


def test_a_sweep_of_another_kind_than_wanted_is_refused(tmp_path: Path) -> None:
    folder = create_sweep(tmp_path, "s", {"kind": "scale"}, PLAN)

    assert load_sweep_of(folder.path, "scale") == load_sweep(folder.path)
    with pytest.raises(RequestError, match="`stepscope scale`, not by `stepscope accel search`"):
        load_sweep_of(folder.path, "search")

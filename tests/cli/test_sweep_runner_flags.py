"""Where a sweep's trials are made, as flags, a record and Ray's own variable say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.sweep import place_to_go_on, read_place, runner_at
from stepscope.experiments.runners.runner import HERE, Here
from stepscope.records.sweep_folder import Trial, create_sweep

ON_RAY = {"runner": "ray", "address": "10.0.0.1:6379", "mix_nodes": False}


def a_sweep(folder: Path, on: dict[str, Any] | None) -> Path:
    return create_sweep(folder, "s", {"on": on}, [Trial(0, {"workers": 0}, 1)]).path


@pytest.mark.parametrize(
    ("named", "variable", "address"),
    [
        (None, None, "auto"),
        ("auto", None, "auto"),
        (None, "127.0.0.1:1", "127.0.0.1:1"),
        ("auto", "127.0.0.1:1", "127.0.0.1:1"),
        ("10.0.0.1:6379", "127.0.0.1:1", "10.0.0.1:6379"),
    ],
)
def test_a_cluster_that_is_not_named_is_the_one_that_ray_is_told_of(
    monkeypatch, named, variable, address
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    place = read_place("ray", named, mix_nodes=False)
    assert place is not None
    assert place["address"] == address


def test_this_machine_is_one_among_others_where_trials_were_made_on_a_cluster(tmp_path):
    path = a_sweep(tmp_path, ON_RAY)
    assert place_to_go_on(path, None, None, mix_nodes=False) == ON_RAY
    place = place_to_go_on(path, "here", None, mix_nodes=False)
    with runner_at(place) as runner:
        assert runner == Here(among_others=True)


def test_this_machine_is_alone_in_a_sweep_of_its_own(tmp_path):
    place = place_to_go_on(a_sweep(tmp_path, None), "here", None, mix_nodes=False)
    with runner_at(place) as runner:
        assert runner == HERE

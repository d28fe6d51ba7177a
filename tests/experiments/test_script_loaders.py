"""What a folder tells of a script's loaders: which one trains, and whether settings reached it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from whole_records import whole_event
from written_tables import step

from stepscope.experiments.script_loaders import training_loader, warnings_of, why_not_set
from stepscope.records import run_folder, schema
from stepscope.records.run_reader import Run, load_run


def loader(batch_size: int, **known: Any) -> dict[str, Any]:
    """Say of a loader what the hooks would."""
    return {
        "samples": 100,
        "shuffles": False,
        "batches_by": "loader",
        "found": {"batch_size": batch_size},
        "refused": {},
        **known,
    }


def refused(batch_size: int, **known: Any) -> dict[str, Any]:
    return loader(batch_size, refused={"batch_size": "for a reason"}, **known)


Recorded = Callable[..., Run]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """Record the folder of a script that made some loaders and steps."""

    def record(*loaders: dict[str, Any], samples: tuple[int, ...] = ()) -> Run:
        made = run_folder.create_at(tmp_path / "run", "script", "trace", {})
        for each in loaders:
            about = whole_event({"event": "loader", **each})
            details = {name: about[name] for name in about.keys() - {"event", "time_s"}}
            made.add_event("loader", 0.0, **details)
        made.add_event("fault", 0.0, traceback="another event")
        with (made.path / schema.STEPS).open("a", encoding="utf-8") as steps:
            for count in samples:
                row = step(1, samples=count)
                steps.write(",".join(str(row.get(name, "")) for name in schema.STEP_COLUMNS) + "\n")
        return load_run(made.path)

    return record


@pytest.mark.parametrize(
    ("loaders", "trains"),
    [
        ([loader(1), loader(2, shuffles=True), loader(3, shuffles=True)], 2),
        ([loader(1), loader(2, batches_by="batch_sampler")], 2),
        ([loader(1, samples=10), loader(2, samples=90), loader(3, samples=None)], 2),
        ([loader(1, samples=None)], 1),
    ],
)
def test_the_loader_that_trains_is_found(
    recorded: Recorded, loaders: list[dict[str, Any]], trains: int
) -> None:
    found = training_loader(recorded(*loaders))
    assert found is not None
    assert found["found"]["batch_size"] == trains


def test_a_script_without_loaders_has_none_that_trains(recorded: Recorded) -> None:
    run = recorded()
    assert training_loader(run) is None
    assert why_not_set(run, {}) is None
    assert "makes no DataLoader" in (why_not_set(run, {"num_workers": 1}) or "")


def test_a_batch_that_the_training_s_loader_refused_was_not_set(recorded: Recorded) -> None:
    run = recorded(refused(8, shuffles=True), loader(8))
    assert "for a reason" in (why_not_set(run, {"batch_size": 16}) or "")
    assert why_not_set(run, {"num_workers": 1}) is None


@pytest.mark.parametrize(
    ("samples", "reached"),
    [((8, 8), False), ((16, 16), True), ((16, 8), True), ((35, 35), True), ((), True)],
)
def test_steps_with_the_batch_of_a_loader_that_kept_its_own_give_it_away(
    recorded: Recorded, samples: tuple[int, ...], reached: bool
) -> None:
    run = recorded(loader(4, shuffles=True), refused(8), samples=samples)
    reason = why_not_set(run, {"batch_size": 16})
    assert (reason is None) == reached
    assert reached or "its steps have 8 samples" in (reason or "")


NO_WORKERS = {"prefetch_factor": "no workers", "persistent_workers": "no workers"}


@pytest.mark.parametrize("name", NO_WORKERS)
def test_what_a_loader_without_workers_refused_was_not_set(recorded: Recorded, name: str) -> None:
    run = recorded(loader(8, shuffles=True, refused={name: "no workers"}))
    reason = why_not_set(run, {name: 4})
    assert reason == (
        f"{name} cannot be set in the script's DataLoader: no workers; "
        "give it some too, --over workers=2"
    )


def test_settings_of_workers_are_not_missed_without_workers_or_in_a_test_s_loader(
    recorded: Recorded, tmp_path: Path
) -> None:
    asked = {"prefetch_factor": 4, "persistent_workers": True}
    run = recorded(loader(8, shuffles=True, refused=NO_WORKERS))
    assert why_not_set(run, {**asked, "num_workers": 0}) is None
    shutil.rmtree(tmp_path / "run")
    run = recorded(loader(8, shuffles=True), loader(8, refused=NO_WORKERS))
    assert why_not_set(run, asked) is None


def test_a_warning_about_loaders_is_told_once(recorded: Recorded) -> None:
    run = recorded(loader(8, warning="doubtful"), loader(4, warning="doubtful"), loader(2))
    assert warnings_of(run) == ["doubtful"]

"""The contract of whoever makes trials, held by this machine and by a Ray cluster alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from local_ray_cluster import Cluster

from stepscope.errors import RequestError
from stepscope.experiments.runners.ray_runner import on_ray
from stepscope.experiments.runners.runner import HERE, PlannedTrial, Runner
from stepscope.experiments.workload import TrainingWorkload, TrialRequest
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import Trial
from stepscope.supervisor.child_supervisor import Outcome, SilentListener

# Ray leaves sockets and files of its own to the end of the process.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")

TRAINING = TrainingWorkload(
    {"samples": 64, "batch_size": 32, "epochs": 1, "evaluate": False, "energy": "off"}, quick=True
)


@pytest.fixture(scope="module", params=["here", "ray"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param == "here":
        yield HERE
        return
    cluster = Cluster()
    try:
        cluster.add()
        with on_ray(cluster.address) as runner:
            yield runner
    finally:
        cluster.close()


@dataclass(frozen=True)
class Made:
    """What a runner did with two trials: one that completes, and one that dies."""

    begun: list[Trial]
    ended: list[tuple[Trial, Outcome]]
    paths: list[Path]


@pytest.fixture(scope="module")
def made(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("trials")
    trials = [Trial(0, {"workers": 0}, 1), Trial(1, {"memory_limit": "1MiB"}, 1)]
    paths = [folder / f"trial-{trial.index}" for trial in trials]
    planned_trials = [
        PlannedTrial(trial, TrialRequest(path, SilentListener(), 100.0))
        for trial, path in zip(trials, paths, strict=True)
    ]
    begun: list[Trial] = []
    with closing(runner.run(TRAINING, planned_trials, begun.append)) as ended:
        return Made(begun, list(ended), paths)


def test_every_trial_is_begun_and_given_once_with_its_node(made: Made) -> None:
    given = sorted((trial for trial, _ in made.ended), key=lambda trial: trial.index)
    assert [trial.index for trial in given] == [0, 1]
    assert sorted(made.begun, key=lambda trial: trial.index) == given
    assert all((trial.node is None) == (trial.node_kind is None) for trial in made.begun)


def test_a_trial_that_dies_is_an_outcome_like_any_other(made: Made) -> None:
    statuses = {trial.index: outcome.status for trial, outcome in made.ended}
    assert statuses == {0: schema.COMPLETED, 1: schema.OUT_OF_MEMORY}


def test_the_records_lie_whole_where_they_were_ordered(made: Made) -> None:
    statuses = [load_run(path).status for path in made.paths]
    assert statuses == [schema.COMPLETED, schema.OUT_OF_MEMORY]
    assert len(load_run(made.paths[0]).steps) == 2
    assert sorted(made.paths[0].parent.iterdir()) == made.paths


def test_settings_that_could_only_fail_are_refused_before_any_trial(runner: Runner) -> None:
    runner.check(TRAINING, [{"workers": 0}])
    with pytest.raises(RequestError, match="lenett"):
        runner.check(TRAINING, [{"workers": 0}, {"model": "lenett"}])

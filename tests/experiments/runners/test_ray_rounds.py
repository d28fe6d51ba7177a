"""Which trial a free node takes, and what of a record travels."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.experiments.runners.ray_runner import PendingRounds
from stepscope.experiments.runners.ray_task import Parcel, pack, unpack
from stepscope.experiments.runners.runner import PlannedTrial
from stepscope.experiments.trial import SilentListener
from stepscope.experiments.workload import TrialRequest
from stepscope.records.sweep_folder import Trial


def planned_trials(
    rounds: int, settings: int, kinds: dict[int, str] | None = None
) -> list[PlannedTrial]:
    trial_request = TrialRequest(Path("nowhere"), SilentListener())
    return [
        PlannedTrial(Trial(number, {"workers": number % settings}, round_), trial_request, known)
        for number in range(rounds * settings)
        for round_ in [number // settings + 1]
        for known in [(kinds or {}).get(round_)]
    ]


@given(
    rounds=st.integers(1, 5),
    settings=st.integers(1, 4),
    turns=st.lists(st.sampled_from(["fast", "slow", "old"]), max_size=60),
)
def test_a_round_stays_with_one_kind_and_every_trial_is_handed_out_once(
    rounds: int, settings: int, turns: list[str]
) -> None:
    waiting = PendingRounds.of(planned_trials(rounds, settings))
    kinds = ["fast", "slow", "old"]
    taken = [
        (kind, planned) for kind in [*turns, *kinds * 20] if (planned := waiting.take(kind, kinds))
    ]
    assert sorted(planned.trial.index for _, planned in taken) == list(range(rounds * settings))
    for round_ in range(1, rounds + 1):
        assert len({kind for kind, planned in taken if planned.trial.repeat == round_}) == 1


def test_the_rest_of_a_round_is_for_others_when_its_kind_is_gone() -> None:
    waiting = PendingRounds.of(planned_trials(1, 3))
    lost = waiting.take("fast", ["fast", "slow"])
    assert lost is not None
    assert waiting.take("slow", ["fast", "slow"]) is None
    waiting.give_back(lost)
    assert waiting.take("slow", ["slow"]) == lost
    assert waiting.take("slow", ["slow"]) is not None


def test_a_round_that_was_begun_before_goes_on_with_its_kind() -> None:
    waiting = PendingRounds.of(planned_trials(2, 2, {1: "slow"}))
    taken = waiting.take("fast", ["fast", "slow"])
    assert taken is not None
    assert taken.trial.repeat == 2


@given(st.dictionaries(st.sampled_from(["a", "b", "c/d", "c/e"]), st.binary(max_size=200)))
def test_a_folder_arrives_as_it_was(files: dict[str, bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        folder, there = Path(temporary) / "one", Path(temporary) / "deep" / "two"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        unpack(pack(folder), there)
        arrived = {
            str(file.relative_to(there)): file.read_bytes()
            for file in there.rglob("*")
            if file.is_file()
        }
        assert arrived == files


def test_checkpoints_and_what_is_huge_are_left_behind_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    for name, size in {"run.json": 10, "steps.csv": 500, "checkpoint.pt": 20}.items():
        (folder / name).write_bytes(bytes(size))
    parcel = pack(folder, most_bytes=100)
    assert parcel.left_behind == ("checkpoint.pt", "steps.csv")
    unpack(parcel, tmp_path / "two")
    assert [file.name for file in (tmp_path / "two").iterdir()] == ["run.json"]


def test_a_parcel_that_is_damaged_leaves_no_folder_that_looks_whole(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="zip"):
        unpack(Parcel(b"no zip file"), tmp_path / "two")
    assert not (tmp_path / "two").exists()

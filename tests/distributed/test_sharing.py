"""How ranks share batches, checkpoints and blame, without starting any."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.findings.rank_findings import straggler
from stepscope.analyze.rank_balance import slowest_by_phase
from stepscope.data.sample_order import EpochOrder, share_of
from stepscope.errors import RequestError
from stepscope.hardware.process import RankInfo
from stepscope.meter.step_rows import EpochTiming
from stepscope.records import run_folder, schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.table import Table
from stepscope.settings import RunSpec
from stepscope.supervisor.rank_merge import failed_peer, merge_ranks, outcome_of
from stepscope.supervisor.torchrun import FolderRendezvous, spec_under_torchrun
from stepscope.train.checkpoint import RankState, TrainingProgress, part_of_rank
from stepscope.train.distributed import (
    differences_from_one_process,
    is_lost_peer,
    refuse_disagreement,
)
from stepscope.train.epoch_plan import Position
from stepscope.train.recorder import Tally

PLACE = RankInfo(rank=1, world_size=2, run_id="here")


@given(samples=st.integers(0, 10_000), world=st.integers(1, 64))
def test_parts_of_a_batch_follow_each_other_and_differ_by_one_at_most(
    samples: int, world: int
) -> None:
    parts = [share_of(samples, rank, world) for rank in range(world)]
    assert parts[0][0] == 0
    assert parts[-1][1] == samples
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    sizes = [last - first for first, last in parts]
    assert max(sizes) - min(sizes) <= 1


@given(samples=st.integers(1, 300), world=st.integers(1, 8), seed=st.integers(0, 5))
def test_ranks_together_see_the_batches_of_one_process(samples: int, world: int, seed: int) -> None:
    whole = EpochOrder(samples, 16, seed, "full", epoch=1)
    orders = [
        EpochOrder(samples, 16, seed, "full", 1, rank=rank, world=world) for rank in range(world)
    ]
    for batch, *parts in zip(whole, *orders, strict=True):
        sizes = [
            last - first
            for first, last in (share_of(len(batch.indices), rank, world) for rank in range(world))
        ]
        assert all(len(part.indices) >= 1 for part in parts), "each has something to compute"
        seen = [part.indices[:size] for part, size in zip(parts, sizes, strict=True)]
        assert np.concatenate(seen).tolist() == batch.indices.tolist()


def saved(samples: int, hits: int) -> RankState:
    """Give what a checkpoint keeps of a rank in the middle of an epoch."""
    timing = EpochTiming(1, samples=samples, steps_s=2.0)
    tally = Tally(float(samples), samples, [hits, 0, 0, 0, 0])
    return RankState(TrainingProgress(Position(1, 3), timing, tally), torch.tensor(samples))


def test_a_rank_goes_on_from_its_own_part_of_a_checkpoint() -> None:
    ranks = [saved(48, 5), saved(47, 6)]
    assert part_of_rank(ranks, 1, 2) is ranks[1]


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_ranks_counts_every_sample_once(world: int) -> None:
    parts = [part_of_rank([saved(48, 5), saved(47, 6)], rank, world) for rank in range(world)]
    first, *others = (part.progress for part in parts)
    assert first.timing.samples == first.tally.samples == 95
    assert first.tally.hits[0] == 11
    assert all(part.timing is None and part.tally is None for part in others)
    assert all(part.progress.position == Position(1, 3) for part in parts)
    assert [part.random for part in parts] == [48, 47, None][:world]


def test_what_differs_from_one_process_is_named() -> None:
    assert differences_from_one_process(nn.Linear(2, 2)) == []
    both = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout(0.5))
    batch_norm, dropout = differences_from_one_process(both)
    assert "batch norm" in batch_norm
    assert "dropout" in dropout
    assert differences_from_one_process(nn.Dropout(0.0)) == []
    assert differences_from_one_process(nn.SyncBatchNorm(2)) == []
    for layer in (nn.MultiheadAttention(4, 2, dropout=0.1), nn.LSTM(4, 4, 2, dropout=0.1)):
        assert differences_from_one_process(layer) == [dropout]


def test_ranks_that_say_different_things_are_refused_with_what_differs() -> None:
    alike = {"training samples": 320, "steps": 10}
    refuse_disagreement([alike, dict(alike)], "found different data", "Give them the same")
    with pytest.raises(RequestError) as refused:
        refuse_disagreement(
            [alike, {**alike, "training samples": 300}],
            "found different data",
            "Give them the same",
        )
    assert str(refused.value) == (
        "the ranks found different data: training samples is 300 for rank 1 and 320 for rank 0. "
        "Give them the same."
    )


def test_a_lost_peer_is_told_from_other_errors() -> None:
    assert is_lost_peer(RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer"))
    assert not is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost_peer(ValueError("gloo"))
    with pytest.raises(RuntimeError) as raised:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_lost_peer(raised.value)


def ended(
    run: run_folder.RunFolder, rank: int, status: str, reason: str | None, *events: str
) -> run_folder.RunFolder:
    """Make the folder of a rank that has ended."""
    made = run_folder.create_rank(run.path, rank, "run", {})
    for event in events:
        made.add_event(event, 1.0)
    made.close(status=status, reason=reason, exit_code=rank + 10)
    return made


@pytest.fixture
def run(tmp_path: Path) -> run_folder.RunFolder:
    return run_folder.create(tmp_path, "two", "run", {})


def test_the_rank_that_failed_of_itself_is_named(run: run_folder.RunFolder) -> None:
    ended(run, 0, schema.FAILED, "lost a peer", schema.PEER_LOST)
    ended(run, 1, schema.FAILED, "killed")
    outcome = outcome_of(merge_ranks(run, 2), 2)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (schema.FAILED, "rank 1: killed")
    assert outcome.exit_code == 11


def test_a_peer_lost_before_a_restart_is_forgotten(run: run_folder.RunFolder) -> None:
    ended(run, 0, schema.FAILED, "a fault", schema.PEER_LOST, "resume")
    ended(run, 1, schema.INTERRUPTED, "stopped")
    outcome = outcome_of(merge_ranks(run, 2), 2)
    assert outcome is not None
    assert outcome.reason == "rank 0: a fault"


def test_a_rank_without_a_folder_is_missed(run: run_folder.RunFolder) -> None:
    assert outcome_of(merge_ranks(run, 2), 2) is None
    ended(run, 0, schema.COMPLETED, None)
    outcome = outcome_of(merge_ranks(run, 2), 2)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (
        schema.FAILED,
        "2 ranks were wanted, 1 left a folder",
    )


def test_a_rank_that_nobody_holds_any_more_is_closed(run: run_folder.RunFolder) -> None:
    ended(run, 0, schema.COMPLETED, None)
    gone = run_folder.create_rank(run.path, 1, "run", {})
    gone.update_info(process=1)
    assert failed_peer(run.path, 0, world_size=2) == "rank 1 failed"
    merge_ranks(run, 2)
    assert load_run(gone.path).status == schema.FAILED
    with run_folder.RunFolder(run.path / "ranks" / "0").held():
        assert failed_peer(run.path, 1, world_size=2) is None


def test_rows_from_before_there_were_ranks_are_kept(run: run_folder.RunFolder) -> None:
    def write(path: Path, *rows: tuple[int, int, int, float]) -> None:
        header = ",".join(schema.STEP_COLUMNS)
        lines = []
        for epoch, step, samples, loss in rows:
            known = {"epoch": epoch, "step": step, "samples": samples, "loss": loss}
            known |= {"step_s": 1.0, "detail": "full"}
            lines.append(",".join(str(known.get(name, "")) for name in schema.STEP_COLUMNS))
        (path / schema.STEPS).write_text("\n".join([header, *lines, ""]), encoding="utf-8")

    write(run.path, (1, 1, 32, 5.0))
    write(ended(run, 0, schema.COMPLETED, None).path, (1, 2, 24, 2.0))
    write(ended(run, 1, schema.COMPLETED, None).path, (1, 2, 8, 4.0))
    merge_ranks(run, 2)
    steps = load_run(run.path).steps
    assert list(steps["step"]) == [1, 2]
    assert list(steps["samples"]) == [32, 32]
    assert list(steps["loss"]) == [5.0, 2.5], "weighed by samples"


def test_what_held_rank_0_s_machine_back_is_told_of_the_run_once(run: run_folder.RunFolder) -> None:
    told = ("throttling_watched", "throttling", "checkpoint")
    ended(run, 0, schema.COMPLETED, None, *told)
    ended(run, 1, schema.COMPLETED, None)
    merge_ranks(run, 2)
    merge_ranks(run, 2)  # as after a resume
    assert [event["event"] for event in load_run(run.path).events] == [*told[:2]]


def test_torchrun_decides_on_the_number_of_processes() -> None:
    assert spec_under_torchrun(PLACE, RunSpec()).processes == 2
    with pytest.raises(RequestError, match="torchrun has started 2"):
        spec_under_torchrun(PLACE, RunSpec(processes=4))
    with pytest.raises(RequestError, match="--processes"):
        spec_under_torchrun(PLACE, RunSpec(memory_limit=2**30))


def test_a_note_of_an_earlier_start_is_found_again_after_a_restart(tmp_path: Path) -> None:
    first = FolderRendezvous(RankInfo(0, 2, "m"), tmp_path, survives_restart=True)
    made = first.find_run(lambda: run_folder.create(tmp_path, "a", "run", {}).path)
    restarted = RankInfo(0, 2, "m", restarts=1, max_restarts=1)
    again = FolderRendezvous(restarted, tmp_path, survives_restart=True)

    def no_other() -> Path:
        raise AssertionError("the run is there")

    assert again.find_run(no_other) == made
    assert (
        FolderRendezvous(RankInfo(1, 2, "m", restarts=1), tmp_path, True).find_run(no_other) == made
    )
    again.forget()
    assert not list(tmp_path.glob(".rendezvous*"))


def test_ranks_0_before_and_after_a_restart_may_answer_at_once(tmp_path: Path) -> None:
    def make() -> Path:
        return run_folder.create(tmp_path, "a", "run", {}).path

    for asked in range(300):  # by ranks that were killed: enough for the answers to cross
        (tmp_path / f".rendezvous-m.ask-2-{asked}").touch()
    made = FolderRendezvous(RankInfo(0, 2, "m"), tmp_path, True).find_run(make)
    for restarts in (1, 2, 3):
        FolderRendezvous(RankInfo(0, 2, "m", restarts), tmp_path, True).find_run(make)
    assert FolderRendezvous(RankInfo(1, 2, "m", restarts=4), tmp_path, True).find_run(make) == made
    FolderRendezvous(RankInfo(0, 2, "m"), tmp_path, True).forget()


def test_who_answers_for_a_run_stops_when_it_is_forgotten(tmp_path: Path) -> None:
    def answering() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if "_answer" in each.name]

    before = answering()
    first = FolderRendezvous(RankInfo(0, 2, "m"), tmp_path)
    first.find_run(lambda: run_folder.create(tmp_path, "a", "run", {}).path)
    (mine,) = set(answering()) - set(before)
    first.forget()
    mine.join(timeout=20)
    assert not mine.is_alive()


def figures(rank: int, forward_s: float) -> dict[str, Any]:
    own_s = {**dict.fromkeys(schema.PHASES, 0.01), "forward": forward_s}
    return {"rank": rank, "host": f"board{rank}", "own_s": own_s}


def looked_at(tmp_path: Path, *ranks: dict[str, Any]) -> RunView:
    steps = 30
    columns: dict[str, Any] = {
        "epoch": [1] * steps,
        "detail": ["full"] * steps,
        "step_s": [0.1] * steps,
    }
    info = {"kind": "run", "spec": {}, "summary": json.loads(json.dumps({"ranks": ranks}))}
    return RunView(Run(tmp_path, info, lambda path: Table(columns)))


def test_a_straggler_is_named_with_host_and_phase(tmp_path: Path) -> None:
    ranks = [figures(0, 0.01), figures(1, 0.04), figures(2, 0.01)]
    finding = straggler(looked_at(tmp_path, *ranks))
    assert finding is not None
    assert "rank 1 on board1" in finding.text
    assert "`forward`" in finding.text
    assert finding.weight == pytest.approx(0.3)
    slowest = slowest_by_phase(ranks)
    assert slowest is not None
    assert slowest["forward"] == {
        "rank": 1,
        "host": "board1",
        "mean_s": 0.04,
        "others_mean_s": pytest.approx(0.01),
    }


def test_ranks_that_keep_pace_are_no_finding(tmp_path: Path) -> None:
    assert straggler(looked_at(tmp_path, figures(0, 0.01), figures(1, 0.012))) is None
    assert straggler(looked_at(tmp_path)) is None
    assert slowest_by_phase([{**figures(0, 0.01), "own_s": None}, figures(1, 0.01)]) is None

"""How ranks share batches, checkpoints and blame, without starting any."""

from __future__ import annotations

import json
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
from stepscope.meter.step_rows import EpochTiming
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.train.checkpoint import RankState, TrainingProgress, part_of_rank
from stepscope.train.distributed import differences_from_one_process, is_lost_peer
from stepscope.train.epoch_plan import Position
from stepscope.train.recorder import Tally


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
        EpochOrder(samples, 16, seed, "full", 1, rank=rank, world_size=world)
        for rank in range(world)
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


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_ranks_counts_every_sample_once(world: int) -> None:
    ranks = [saved(48, 5), saved(47, 6)]
    assert part_of_rank(ranks, 1, 2) is ranks[1], "with as many as before, each has its own"
    parts = [part_of_rank(ranks, rank, world) for rank in range(world)]
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


def test_a_lost_peer_is_told_from_other_errors() -> None:
    assert is_lost_peer(RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer"))
    assert not is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost_peer(ValueError("gloo"))
    with pytest.raises(RuntimeError) as raised:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_lost_peer(raised.value)


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

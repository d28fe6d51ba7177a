"""What binds a training, from its figures alone."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.analyze.bottleneck_shares import Evidence, bound_by, data_stalls
from stepscope.analyze.sweep_summary import mean_step
from stepscope.records.types import StallsSummary


def step(**seconds: float) -> dict[str, Any]:
    """A step of 100 ms that waits for nothing, changed where a test says so."""
    usual = {"step_s": 0.1, "data_s": 0.001, "transfer_s": 0.001, "forward_s": 0.03,
             "backward_s": 0.06, "optimizer_s": 0.007, "other_s": 0.001, "load_s": 0.02,
             "load_cpu_s": 0.02}  # fmt: skip
    return {**usual, **seconds}


WAITS = {"data_s": 0.06, "load_s": 0.06}


@pytest.mark.parametrize(
    ("evidence", "bound"),
    [
        (Evidence(step(), 0, 2), "compute"),
        (Evidence(step(transfer_s=0.5, step_s=0.6), 0, 2), "transfer"),
        (Evidence(step(other_s=0.5, step_s=0.6), 0, 2), "host"),
        (Evidence(step(**WAITS, load_cpu_s=0.06), 0, 2), "preprocessing"),
        (Evidence(step(**WAITS, load_cpu_s=0.001), 0, 2, read_bytes_per_s=0.0), "preprocessing"),
        (Evidence(step(**WAITS, load_cpu_s=0.001), 0, 2, read_bytes_per_s=1e8), "storage"),
        (Evidence(step(**WAITS, load_cpu_s=0.06), 0, 2, from_memory=step(load_s=0.01)), "storage"),
        (
            Evidence(step(**WAITS, load_cpu_s=0.06), 0, 2, from_memory=step(load_s=0.055)),
            "preprocessing",
        ),
        (Evidence(step(forward_s=0.06), 2, 2, alone=step(forward_s=0.01)), "contention"),
        (Evidence(step(**WAITS, load_cpu_s=0.02), 2, 2, alone=step(load_s=0.02)), "contention"),
        # Another process reads the disk.
        (Evidence(step(**WAITS), 0, 2, reads_files=False, read_bytes_per_s=1e8), "preprocessing"),
        (Evidence(step(data_s=0.009, load_s=0.009), 0, 2), "compute"),
        (Evidence(step(data_s=0.043, load_s=0.043, load_cpu_s=0.043), 0, 2), "preprocessing"),
        (Evidence(step(data_s=0.02, load_s=0.2, load_cpu_s=0.2), 2, 2), "preprocessing"),
        (Evidence({**step(data_s=0.06), "load_s": None}, 2, 2), "unclear"),
        (Evidence(mean_step([]), 0, 2), "unclear"),
    ],
)
def test_the_word_follows_the_figures(evidence: Evidence, bound: str) -> None:
    found, why = bound_by(evidence)
    assert found == bound
    assert why


def stalls(memory: dict[str, Any], source: dict[str, Any], workers: int = 0) -> StallsSummary:
    ways = {"synthetic": step(data_s=0), "memory": memory, "source": source}
    return data_stalls(ways, 32, workers)


SLOW = step(data_s=0.1, step_s=0.2, load_s=0.1)
FETCHES = step(data_s=0.301, step_s=0.4, load_s=0.32)
SHARES_CPUS = step(forward_s=0.13, step_s=0.2)


@pytest.mark.parametrize(
    ("memory", "source", "workers", "bound", "lost", "at_most"),
    [
        (step(), step(), 0, "compute", {}, {"more_workers": 1 / 0.99}),
        (
            *(SLOW, SLOW, 0, "preprocessing", {"preprocessing": 0.5}),
            {"more_workers": 2.0, "faster_storage": 1.0},
        ),
        (step(), FETCHES, 0, "storage", {"fetching": 0.75}, {"faster_storage": 4.0}),
        (step(), SHARES_CPUS, 2, "contention", {"contention": 0.5}, {}),
    ],
)
def test_what_is_lost_by_a_step_and_what_could_be_won(
    memory: dict[str, Any],
    source: dict[str, Any],
    workers: int,
    bound: str,
    lost: dict[str, float],
    at_most: dict[str, float],
) -> None:
    found = stalls(memory, source, workers)
    assert found["bound_by"] == bound
    assert {name: found["lost"][name] for name in lost} == pytest.approx(lost)
    assert {name: found["at_most"][name] for name in at_most} == pytest.approx(at_most)


def test_rates_are_those_of_each_part_alone() -> None:
    assert stalls(SLOW, SLOW)["rates"]["preprocessing"] == pytest.approx(320)
    assert stalls(step(), FETCHES)["rates"]["fetching"] == pytest.approx(32 / 0.3)

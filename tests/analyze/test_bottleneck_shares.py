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
        (Evidence(step(data_s=0.02, load_s=0.02), 0, 2), "compute"),
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


def test_a_network_that_takes_all_the_time_is_compute_bound() -> None:
    found = stalls(step(), step())
    assert found["bound_by"] == "compute"
    assert found["at_most"]["more_workers"] == pytest.approx(1.0, abs=0.02)


def test_what_waits_with_data_in_memory_is_preprocessing() -> None:
    slow = step(data_s=0.1, step_s=0.2, load_s=0.1)
    found = stalls(slow, slow)
    assert found["bound_by"] == "preprocessing"
    assert found["lost"]["preprocessing"] == pytest.approx(0.5)
    assert found["at_most"]["more_workers"] == pytest.approx(2.0)
    assert found["at_most"]["faster_storage"] == pytest.approx(1.0)
    assert found["rates"]["preprocessing"] == pytest.approx(320)


def test_what_waits_only_for_its_source_is_storage() -> None:
    found = stalls(step(), step(data_s=0.301, step_s=0.4, load_s=0.32))
    assert found["bound_by"] == "storage"
    assert found["lost"]["fetching"] == pytest.approx(0.75)
    assert found["at_most"]["faster_storage"] == pytest.approx(4.0)
    assert found["rates"]["fetching"] == pytest.approx(32 / 0.3)


def test_a_network_slowed_by_its_workers_is_contention_and_not_a_wait() -> None:
    found = stalls(step(), step(forward_s=0.13, step_s=0.2), workers=2)
    assert found["bound_by"] == "contention"
    assert found["lost"]["contention"] == pytest.approx(0.5)

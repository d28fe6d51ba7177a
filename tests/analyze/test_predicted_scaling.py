"""What more processes are predicted to bring, worked out by hand, and what must hold of any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.predicted_scaling import Base, Mode, ScalingInputs, bucket_count, predict

# One process, 64 samples in 100 ms: 50 ms backward, 10 ms that do not depend on the samples.
ONE = Base(1, 64, samples_per_s=640, step_s=0.1, backward_s=0.05, fixed_s=0.01)
# 1 MB of gradients at 10 MB/s: four processes take 6/4 * 0.1 s + 6 * 1 ms = 156 ms.
SLOW = ScalingInputs(1e7, latency_s=0.001, gradient_bytes=10**6, overlap_share=0)


def test_a_ring_sends_its_share_over_each_link_in_twice_the_turns() -> None:
    by_processes = {count: SLOW.allreduce_s(count) for count in (1, 2, 4)}
    assert by_processes == pytest.approx({1: 0, 2: 0.102, 4: 0.156})


def test_every_portion_of_the_gradients_takes_its_own_turns() -> None:
    mib = 2**20
    inputs = ScalingInputs(mib, latency_s=1, gradient_bytes=60 * mib, overlap_share=0)
    # One of 1 MiB, then up to 25 MiB each: 60 MiB go as 1 + 25 + 25 + 9.
    sizes = {1: 1, mib: 1, mib + 1: 2, 26 * mib: 2, 60 * mib: 4}
    assert {size: bucket_count(size) for size in sizes} == sizes
    assert inputs.allreduce_s(4) == pytest.approx(6 / 4 * 60 + 6 * 4)


def test_portions_are_those_of_the_training() -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    parameters = [torch.zeros(2**18) for _ in range(60)]  # of 1 MiB each
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20]
    buckets, _ = dist._compute_bucket_assignment_by_size(parameters, limits)
    assert len(buckets) == bucket_count(60 * 2**20)


@pytest.mark.parametrize(
    ("mode", "batch", "step_s"),
    # A quarter of 90 ms, the 10 ms that stay, 156 ms of all-reduce; or the whole 100 ms and that.
    [("strong", 64, 0.1885), ("weak", 256, 0.256)],
)
def test_each_computes_on_its_part_and_waits_for_the_allreduce(
    mode: Mode, batch: int, step_s: float
) -> None:
    found = predict(mode, batch, 4, ONE, SLOW)
    assert found["step_s"] == pytest.approx(step_s)
    assert found["samples_per_s"] == pytest.approx(batch / step_s)
    assert found["speedup"] == pytest.approx(batch / 64 * 0.1 / step_s)
    assert found["efficiency"] == pytest.approx(found["speedup"] / 4)


def test_what_is_hidden_is_never_more_than_the_backward_pass_takes() -> None:
    half = replace(SLOW, overlap_share=0.5)
    # Half of 156 ms is more than a quarter of 50 ms of backward, and than the whole of them.
    assert predict("strong", 64, 4, ONE, half)["exposed_s"] == pytest.approx(0.156 - 0.0125)
    assert predict("weak", 256, 4, ONE, half)["exposed_s"] == pytest.approx(0.156 - 0.05)
    tenth = replace(SLOW, overlap_share=0.1)
    assert predict("weak", 256, 4, ONE, tenth)["exposed_s"] == pytest.approx(0.9 * 0.156)


def test_the_process_with_the_most_samples_sets_the_pace() -> None:
    ten = Base(1, 10, samples_per_s=100, step_s=0.1, backward_s=0, fixed_s=0)
    at_once = ScalingInputs(1e30, 0, gradient_bytes=1, overlap_share=0)
    # Ten samples over four: some have three of them.
    assert predict("strong", 10, 4, ten, at_once)["speedup"] == pytest.approx(10 / 3)


def test_a_base_of_two_is_taken_without_its_communication() -> None:
    two = Base(2, 64, 640, step_s=0.1, backward_s=0.06, fixed_s=0.01, communication_s=0.02)
    found = predict("strong", 64, 4, two, replace(SLOW, overlap_share=1))
    # Half of the 70 ms that go with the samples, 10 ms that stay; backward's own part is 40 ms.
    assert found["exposed_s"] == pytest.approx(0.156 - 0.02)
    assert found["step_s"] == pytest.approx(0.045 + 0.136)
    assert found["efficiency"] == pytest.approx(found["speedup"] / 2)


shares = st.floats(0, 1)


@given(
    processes=st.integers(2, 64),
    step_s=st.floats(1e-4, 10),
    parts=st.tuples(shares, shares),
    slow=st.builds(
        ScalingInputs, st.floats(1e3, 1e12), st.floats(0, 0.1), st.integers(1, 10**10), shares
    ),
)
def test_no_prediction_is_better_than_ideal_and_a_faster_network_is_never_worse(
    processes: int, step_s: float, parts: tuple[float, float], slow: ScalingInputs
) -> None:
    backward_s, fixed_s = (part * step_s / 2 for part in parts)
    base = Base(1, 64, 64 / step_s, step_s, backward_s, fixed_s)
    fast = replace(slow, bandwidth_bytes_per_s=2 * slow.bandwidth_bytes_per_s)
    for mode, batch in (("strong", 64), ("weak", 64 * processes)):
        found = predict(mode, batch, processes, base, slow)
        assert 0 < found["efficiency"] <= 1 + 1e-9
        assert 0 <= found["exposed_s"] <= found["exchange_s"]
        assert found["samples_per_s"] == pytest.approx(batch / found["step_s"])
        better = predict(mode, batch, processes, base, fast)
        assert better["speedup"] >= found["speedup"] * (1 - 1e-9)

"""The meter, driven by a clock and a device whose every move is written down beforehand."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from scripted_clock import MS, ScriptedClock, ScriptedDevice

from stepscope.meter import step_meter
from stepscope.meter.step_meter import (
    BLOCK_EVERY_STEPS,
    BLOCK_STEPS,
    FIRST_AFTER_STEPS,
    FLUSH_EVERY_NS,
    OffBlocks,
    StepMeter,
)
from stepscope.meter.step_rows import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    TRANSFER,
    EpochTiming,
    LoadTiming,
)
from stepscope.records.csv_log import CsvLog
from stepscope.records.schema import STEP_COLUMNS
from stepscope.records.table import read_table


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ScriptedClock:
    scripted = ScriptedClock()
    monkeypatch.setattr(step_meter, "now_ns", scripted)
    return scripted


@pytest.fixture
def log(tmp_path: Path):
    path = tmp_path / "steps.csv"
    path.write_text(",".join(STEP_COLUMNS) + "\n")
    with CsvLog(path) as opened:
        yield opened


def begun(log: CsvLog, origin_ns: int = 0, **options) -> StepMeter:
    """Give a meter whose first step begins now."""
    meter = StepMeter(log, origin_ns, **options)
    meter.open_epoch(EpochTiming(1))
    meter.loader_started()
    return meter


def rows(log: CsvLog, tmp_path: Path):
    return list(read_table(tmp_path / "steps.csv").rows())


def one_step(meter, clock, step, device=None, loss=1.5):
    for phase, host_ms, device_ms in (
        (DATA, 4, 0),
        (TRANSFER, 1, 2),
        (FORWARD, 3, 10),
        (BACKWARD, 5, 20),
        (OTHER, 0.25, 1),
        (OPTIMIZER, 2, 3),
    ):
        clock.pass_ms(host_ms)
        if device is not None and device_ms:
            device.work(device_ms)
        meter.lap(phase)
    clock.pass_ms(0.5)  # nobody claims this
    meter.end_step(step, 8, torch.tensor(loss))


def test_laps_go_to_their_phases_and_the_rest_to_other(clock, log, tmp_path):
    meter = StepMeter(log, origin_ns=0)
    clock.pass_ms(100)
    timing = EpochTiming(1)
    meter.open_epoch(timing)
    clock.pass_ms(7)
    meter.loader_started()
    one_step(meter, clock, 1)
    clock.pass_ms(0)
    one_step(meter, clock, 2)
    clock.pass_ms(9)
    meter.close_epoch()
    first, second = rows(log, tmp_path)
    assert first["start_s"] == pytest.approx(0.107)
    assert (first["data_s"], first["transfer_s"], first["forward_s"]) == (0.004, 0.001, 0.003)
    assert (first["backward_s"], first["optimizer_s"]) == (0.005, 0.002)
    assert first["other_s"] == pytest.approx(0.00075)
    assert first["step_s"] == pytest.approx(0.01575)
    assert first["loss"] == 1.5
    assert second["start_s"] == pytest.approx(first["start_s"] + first["step_s"])
    assert first["forward_device_s"] is None
    assert timing.loader_start_s == pytest.approx(0.007)
    assert timing.loader_stop_s == pytest.approx(0.009)
    assert timing.loading_s == pytest.approx(0.007 + 2 * 0.004)
    assert timing.training_s == pytest.approx(2 * (0.01575 - 0.004))
    assert timing.total_s == 0, "that clock pair is the loop's"
    assert timing.samples == 16


def test_time_for_whoever_looks_on_is_ours_and_no_wait_for_data(clock, log, tmp_path):
    meter = begun(log, on_step=lambda step, timing: clock.pass_ms(50))
    clock.pass_ms(FLUSH_EVERY_NS / MS)  # a flush is due after the first step
    one_step(meter, clock, 1)
    one_step(meter, clock, 2)
    assert meter.own_ns == 50 * MS
    meter.flush()
    _, second = rows(log, tmp_path)
    assert second["data_s"] == 0.004
    assert second["other_s"] == pytest.approx(0.00075 + 0.050)


def test_an_epoch_ends_when_the_device_has_caught_up(clock, log):
    class Lagging(ScriptedDevice):
        def mark(self):
            mark = super().mark()
            wait = mark.wait
            mark.wait = lambda: (
                setattr(clock, "now", max(clock.now, round(mark.at_ms * MS))),
                wait(),
            )
            return mark

    device = Lagging(clock)
    timing = EpochTiming(1)
    meter = StepMeter(log, 0, queue=device)
    meter.open_epoch(timing)
    meter.loader_started()
    one_step(meter, clock, 1, device)
    meter.close_epoch()
    # The host is done after 15.75 ms. Forward reaches the device's queue at 8 ms, and from there on
    # it is busy for 10 + 20 + 1 + 3 ms: until 42.
    assert timing.loader_stop_s == pytest.approx(0.042 - 0.01575)


def test_the_loaders_account_of_several_batches_is_added_up(clock, log, tmp_path):
    meter = begun(log, origin_ns=10 * MS)
    meter.loaded(LoadTiming(worker=1, start_ns=12 * MS, wall_ns=3 * MS, cpu_ns=2 * MS))
    meter.loaded(LoadTiming(worker=0, start_ns=15 * MS, wall_ns=4 * MS, cpu_ns=1 * MS))
    one_step(meter, clock, 1)
    one_step(meter, clock, 2)
    meter.flush()
    first, second = rows(log, tmp_path)
    assert (first["load_s"], first["load_cpu_s"]) == (0.007, 0.003)
    assert (first["load_start_s"], first["load_worker"]) == (0.002, 1)
    assert second["load_s"] is None, "what nobody accounted for is unknown, not 0"


def test_a_loss_arrives_with_its_samples_even_when_it_is_no_number(clock, log):
    seen = []
    meter = begun(log, on_loss=lambda *values: seen.append(values))
    one_step(meter, clock, 1, loss=float("nan"))
    assert seen == [], "nobody is told in the middle of the loop"
    meter.flush()
    [(samples, loss)] = seen
    assert samples == 8
    assert loss != loss


def test_on_an_asynchronous_device_the_loop_never_waits_and_rows_come_later(clock, log, tmp_path):
    device = ScriptedDevice(clock)
    seen = []
    meter = begun(log, queue=device, on_loss=lambda *values: seen.append(values))
    clock.pass_ms(FLUSH_EVERY_NS / MS)  # a flush is due after the first step
    one_step(meter, clock, 1, device)
    clock.pass_ms(FLUSH_EVERY_NS / MS)  # and after the second
    one_step(meter, clock, 2, device)
    assert rows(log, tmp_path) == [], "the device is still busy with the first step"
    assert device.now_ms == 0, "and nobody made it hurry"
    device.now_ms = FLUSH_EVERY_NS / MS + 45
    clock.pass_ms(FLUSH_EVERY_NS / MS)
    one_step(meter, clock, 3, device)
    assert [row["step"] for row in rows(log, tmp_path)] == [1]
    assert len(seen) == 1
    meter.close_epoch()
    assert [row["step"] for row in rows(log, tmp_path)] == [1, 2, 3]
    assert len(seen) == 3


def test_the_devices_columns_partition_its_time(clock, log, tmp_path):
    device = ScriptedDevice(clock)
    meter = begun(log, queue=device)
    for step in (1, 2, 3):
        one_step(meter, clock, step, device)
    meter.close_epoch()
    first, second, third = rows(log, tmp_path)
    # Step 1: the device is idle for the 4 ms of loading and the 1 ms that the host takes to issue
    # the transfer; from then on its queue is never empty, so later steps have no idle time at all.
    assert first["idle_device_s"] == pytest.approx(0.004)
    assert first["transfer_device_s"] == pytest.approx(0.003)
    assert first["forward_device_s"] == pytest.approx(0.011)
    assert first["other_device_s"] == pytest.approx(0.001), "hits are counted"
    assert first["backward_device_s"] == pytest.approx(0.020)
    assert first["optimizer_device_s"] == pytest.approx(0.003)
    for row in (second, third):
        assert row["idle_device_s"] == pytest.approx(0)
        assert row["forward_device_s"] == pytest.approx(0.010)


def test_the_instrument_states_its_own_cost(log, monkeypatch: pytest.MonkeyPatch):
    # The steps do nothing, also where a busy machine lets them wait; what is measured is real.
    little_passes = itertools.count(step=100)
    monkeypatch.setattr(step_meter, "now_ns", lambda: next(little_passes))
    meter = StepMeter(log, origin_ns=0)
    untouched = step_meter.measure_overhead(meter)
    assert untouched["overhead_per_step_s"] is None, "no step, no cost a step"
    meter.open_epoch(EpochTiming(1))
    meter.loader_started()
    for step in range(50):
        for phase in (DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER):
            meter.lap(phase)
        meter.end_step(step + 1, 1, torch.tensor(0.0))
    meter.flush()
    measured = step_meter.measure_overhead(meter)
    assert 0 < measured["clock_resolution_s"] < 1e-3
    assert 0 < measured["lap_cost_s"] < 1e-3
    assert measured["overhead_per_step_s"] > 6 * measured["lap_cost_s"]
    assert measured["overhead_share"] > 0.3, "steps that do nothing are mostly instrument"


def test_weighing_the_instrument_adds_no_row_on_the_slowest_machine(
    log, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    seconds_pass = itertools.count(step=10**9)
    monkeypatch.setattr(step_meter, "now_ns", lambda: next(seconds_pass))
    step_meter.measure_overhead(StepMeter(log, origin_ns=0))
    log.flush()
    assert rows(log, tmp_path) == []


def test_rows_are_on_disk_before_anybody_can_object_to_them(clock, log, tmp_path):
    def object_to(samples: int, loss: float) -> None:
        raise ArithmeticError

    meter = begun(log, on_loss=object_to)
    one_step(meter, clock, 1)
    one_step(meter, clock, 2)
    with pytest.raises(ArithmeticError):
        meter.flush()
    assert [row["step"] for row in rows(log, tmp_path)] == [1, 2]


# blocks of steps without detail


def blocks_in(steps: int) -> list[tuple[int, int]]:
    blocks, found, begin = OffBlocks(), [], 0
    for step in range(steps):
        if blocks.switch(step):
            if blocks.off:
                begin = step
            else:
                found.append((begin, step))
    return found


def test_a_run_of_two_thousand_steps_has_none():
    assert blocks_in(FIRST_AFTER_STEPS) == []


def test_blocks_are_short_and_far_apart():
    found = blocks_in(20_000)
    assert len(found) > 20
    assert {end - begin for begin, end in found} == {BLOCK_STEPS}
    gaps = [after - end for (_, end), (after, _) in itertools.pairwise(found)]
    assert BLOCK_EVERY_STEPS[0] <= min(gaps) < max(gaps) <= BLOCK_EVERY_STEPS[1]


def test_the_programs_own_random_numbers_are_left_alone():
    random.seed(7)
    before = random.getstate()
    blocks_in(10_000)
    assert random.getstate() == before

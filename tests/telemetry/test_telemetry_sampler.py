"""What a process holds is looked at from outside, the costly part of it no oftener than need be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from scripted_clock import ScriptedClock

from stepscope.hardware.process import read_tree, with_pss, with_workers_sizes
from stepscope.meter import clock
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.telemetry import telemetry_sampler
from stepscope.telemetry.telemetry_sampler import Sampler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sizes are Linux's")

MIB = 2**20
# Holds as many bytes as its input says, all of them written to; those of a worker in a child, which
# ends at the next word.
HOLDER = """
import os, signal, sys
held, worker = [], None
def end_worker():
    if worker is not None:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
for line in sys.stdin:
    who, size = line.split()
    end_worker()
    worker = None
    if who == "worker":
        said, tell = os.pipe()
        worker = os.fork()
        if worker == 0:
            held.append(b"x" * int(size))
            os.write(tell, b"held")
            signal.pause()
        os.read(said, 4)
    else:
        held.append(b"x" * int(size))
    print("held", flush=True)
end_worker()
"""


class Holder:
    """A process that holds as much memory as it is told to."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", HOLDER]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.hold(1)

    def hold(self, more_bytes: int, who: str = "main") -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(who, more_bytes, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "held\n"


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    yield made
    made.process.communicate()


@pytest.fixture
def sampler(holder: Holder, tmp_path: Path) -> Iterator[Sampler]:
    file = tmp_path / schema.TELEMETRY
    file.write_text(",".join(schema.TELEMETRY_COLUMNS) + "\n")
    with CsvLog(file) as log:
        yield Sampler(psutil.Process(holder.process.pid), log, clock.now_ns())


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ScriptedClock:
    scripted = ScriptedClock()
    scripted.pass_ms(1e6)
    monkeypatch.setattr(telemetry_sampler, "now_ns", scripted)
    return scripted


@pytest.fixture
def _pss_is_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_sampler, "_PSS_MOST_SHARE", 1e-9)


def has_pss(sampler: Sampler) -> bool:
    reading = sampler.sample()
    assert reading is not None
    return reading.pss_bytes is not None


@pytest.mark.usefixtures("_pss_is_costly")
def test_the_proportional_size_is_read_again_after_growth_and_after_a_minute(sampler, holder, time):
    assert has_pss(sampler)
    time.pass_ms(2_000)
    assert not has_pss(sampler)
    holder.hold(20 * MIB)
    assert has_pss(sampler)
    time.pass_ms(500)
    holder.hold(20 * MIB)
    assert not has_pss(sampler), "at most once a second"
    time.pass_ms(600)
    assert has_pss(sampler)
    time.pass_ms(59_000)
    assert not has_pss(sampler)
    time.pass_ms(2_000)
    assert has_pss(sampler), "after a minute, whatever it costs"


def test_a_sample_that_is_cheap_is_taken_twice_a_second_and_a_costly_one_once(sampler, monkeypatch):
    monkeypatch.setattr(telemetry_sampler, "MOST_SHARE", 1e9)
    sampler.sample()
    assert sampler.pause_s == 0.5
    monkeypatch.setattr(telemetry_sampler, "MOST_SHARE", 1e-9)
    sampler.sample()
    assert sampler.pause_s == 1.0


@pytest.mark.usefixtures("_pss_is_costly")
def test_the_last_sample_has_every_size(sampler, holder, time):
    holder.hold(1, "worker")
    assert has_pss(sampler)
    time.pass_ms(100)
    last = sampler.sample(is_last=True)
    assert last is not None
    assert last.pss_bytes is not None
    assert last.workers_private_bytes is not None


@pytest.mark.usefixtures("_pss_is_costly")
def test_workers_are_weighed_once_a_second_however_costly(sampler, holder, time):
    holder.hold(20 * MIB, "worker")
    assert has_pss(sampler)
    assert sampler.others_bytes > 20 * MIB
    for size in (30 * MIB, 10 * MIB):  # others in its place, with more and with less
        holder.hold(size, "worker")
        time.pass_ms(1_100)
        reading = sampler.sample()
        assert reading is not None
        assert (reading.workers, reading.pss_bytes) == (1, None)
        assert size < sampler.others_bytes < size + 10 * MIB
    assert sampler.peak_others_bytes > 30 * MIB


def test_workers_that_have_ended_hold_nothing(sampler, holder, time):
    holder.hold(20 * MIB, "worker")
    sampler.sample()
    holder.hold(1)
    time.pass_ms(100)
    reading = sampler.sample()
    assert reading is not None
    assert (reading.workers, reading.workers_private_bytes) == (0, 0)
    assert sampler.others_bytes < MIB


def test_a_process_that_has_ended_is_sampled_no_more(sampler, holder):
    holder.process.communicate()
    assert sampler.sample() is None


def test_a_process_may_be_named_like_a_size():
    code = "open('/proc/self/comm', 'w').write('VmHWM: 7 kB'); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reading = read_tree(psutil.Process(process.pid))
        process.communicate(b"\n")
    assert reading is not None
    assert (reading.peak_rss_bytes or 0) >= reading.rss_bytes > MIB


def test_the_sizes_of_a_tree_are_those_that_psutil_tells(holder):
    holder.hold(50 * MIB, "worker")
    reading = read_tree(psutil.Process(holder.process.pid))
    assert reading is not None
    assert (reading.pss_bytes, reading.workers_private_bytes) == (None, None)
    sized = with_pss(with_workers_sizes(reading))
    main, worker = (process.memory_full_info() for process in reading.processes)
    assert sized.pss_bytes == pytest.approx(main.pss + worker.pss, rel=0.02)
    assert sized.workers_private_bytes == pytest.approx(worker.uss, rel=0.02)
    assert sized.rss_bytes == pytest.approx(main.rss, rel=0.02)
    assert sized.swap_bytes == pytest.approx(main.swap + worker.swap, abs=MIB)


def test_a_process_that_ends_before_any_sample_has_the_peak_that_it_reported(tmp_path):
    file = tmp_path / schema.TELEMETRY
    file.touch()
    with CsvLog(file) as log:
        sampler = Sampler(psutil.Process(), log, clock.now_ns())
        assert sampler.peak_memory_bytes is None
        sampler.report_peak(5 * MIB)
        sampler.report_peak(3 * MIB)
        assert sampler.peak_memory_bytes == 5 * MIB

"""What a process holds is looked at from outside, the costly part of it no oftener than need be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepscope.hardware.processes import read_tree, with_sizes
from stepscope.measure import clock, pace, telemetry
from stepscope.measure.telemetry import Sampler
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog

MIB = 2**20
# Takes a size from its input, holds so many bytes, all of them written to, and says so.
HOLDER = """
import sys
held = []
for line in sys.stdin:
    held.append(b"x" * int(line))
    print("held", flush=True)
"""


class Holder:
    """A process that holds as much memory as it is told to."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", HOLDER]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.hold(1)

    def hold(self, more_bytes: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(more_bytes, file=self.process.stdin, flush=True)
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


class Clock:
    """A time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = clock.now_ns()
        monkeypatch.setattr(telemetry, "now_ns", lambda: self.now_ns)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def has_sizes(sampler: Sampler) -> bool:
    reading = sampler.sample()
    assert reading is not None
    return reading.pss_bytes is not None


def test_the_first_sample_has_sizes_and_the_next_has_none(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    assert has_sizes(sampler)
    clock.pass_s(0.5)
    assert not has_sizes(sampler)


def test_sizes_are_read_again_when_memory_has_grown(
    sampler: Sampler, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "_MOST_SHARE", 1e-9)  # whatever it takes, it is costly
    clock = Clock(monkeypatch)
    assert has_sizes(sampler)
    clock.pass_s(2)
    assert not has_sizes(sampler)
    holder.hold(20 * MIB)
    assert has_sizes(sampler)
    clock.pass_s(0.5)
    holder.hold(20 * MIB)
    assert not has_sizes(sampler), "at most once a second"
    clock.pass_s(0.6)
    assert has_sizes(sampler)


def test_what_is_costly_is_read_all_the_same_after_half_a_minute(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "_MOST_SHARE", 1e-9)
    clock = Clock(monkeypatch)
    assert has_sizes(sampler)
    clock.pass_s(29)
    assert not has_sizes(sampler)
    clock.pass_s(2)
    assert has_sizes(sampler)


def test_a_sample_that_is_cheap_is_taken_twice_a_second_and_a_costly_one_once(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "_MOST_SHARE", 1e9)
    sampler.sample()
    assert sampler.pause_s == 0.5
    monkeypatch.setattr(pace, "_MOST_SHARE", 1e-9)
    sampler.sample()
    assert sampler.pause_s == 1.0


def test_a_process_that_has_ended_is_sampled_no_more(sampler: Sampler, holder: Holder) -> None:
    holder.process.communicate()
    assert sampler.sample() is None


def test_a_process_may_be_named_like_a_size() -> None:
    code = "open('/proc/self/comm', 'w').write('VmHWM: 7 kB'); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reading = read_tree(psutil.Process(process.pid))
        process.communicate(b"\n")
    assert reading is not None
    assert (reading.peak_rss_bytes or 0) >= reading.rss_bytes > MIB


def test_the_sizes_of_a_tree_are_those_that_psutil_tells(holder: Holder) -> None:
    holder.hold(50 * MIB)
    process = psutil.Process(holder.process.pid)
    reading = read_tree(process)
    assert reading is not None
    assert (reading.pss_bytes, reading.workers_private_bytes) == (None, None)
    sized, told = with_sizes(reading), process.memory_full_info()
    assert sized.pss_bytes == pytest.approx(told.pss, rel=0.02)
    assert sized.workers_private_bytes == 0
    assert sized.rss_bytes == sized.tree_rss_bytes == pytest.approx(told.rss, rel=0.02)
    assert sized.swap_bytes == told.swap

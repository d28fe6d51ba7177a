"""The processor's counters, by events that the kernel counts on every machine."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time

import pytest
from software_events import SOFTWARE

from stepscope.hardware import perf_events
from stepscope.hardware.perf_events import HARDWARE, Event, explain, open_counters

WORK_NS = 50_000_000


def work(lasts_ns: int = WORK_NS) -> None:
    until = time.thread_time_ns() + lasts_ns
    while time.thread_time_ns() < until:
        sum(range(500))


@pytest.fixture
def counters() -> perf_events.Counters:
    opened = open_counters(SOFTWARE)
    if opened.absent:
        pytest.skip(f"no software events here: {opened.absent}")
    return opened


def test_threads_that_start_later_are_counted_and_forked_processes_are_not(counters):
    before = counters.read()["task_clock_ns"].counted
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with_thread = counters.read()["task_clock_ns"].counted - before
    assert with_thread >= WORK_NS * 0.9
    child = os.fork()  # which takes this process some time, after tests that fill it
    if child == 0:
        work(10 * WORK_NS)
        os._exit(0)
    os.waitpid(child, 0)
    with_fork = counters.read()["task_clock_ns"].counted - before - with_thread
    assert with_fork < 9 * WORK_NS
    counters.close()


def test_a_counter_tells_for_how_long_it_was_wanted_and_had_its_turn(counters):
    work()
    reading = counters.read()["page_faults"]
    assert 0 < reading.running_ns <= reading.enabled_ns
    counters.close()


@pytest.mark.skipif(sys.platform != "linux", reason="perf events are Linux's")
def test_a_counter_that_cannot_be_had_says_why():
    opened = open_counters({**HARDWARE, "nonsense": Event(kind=1, number=10**6)})
    assert opened.absent["nonsense"]
    assert {*opened.descriptors, *opened.absent} == {*HARDWARE, "nonsense"}
    opened.close()


def test_another_system_has_no_counters(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    opened = open_counters(HARDWARE)
    assert (opened.descriptors, set(opened.absent)) == ({}, set(HARDWARE))
    assert opened.read() == {}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (errno.EACCES, "perf_event_paranoid"),
        (errno.EPERM, "not permitted"),
        (errno.ENOENT, "virtual machines"),
        (errno.EINVAL, "5.13"),
        (errno.ENOSYS, "without perf events"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_an_error_is_told_in_words(fault, said):
    assert said in explain(fault)

"""A request to stop is heard between steps, and at once while the loop only waits."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from pathlib import Path

import pytest

from stepscope.errors import Interrupted
from stepscope.train.split_loaders import start_worker
from stepscope.train.stop_request import StopRequest


@pytest.fixture
def stop():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    request = StopRequest()
    request.listen()
    yield request
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_remembered_until_the_step_is_done(stop):
    stop.check()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)
    assert stop.requested
    with pytest.raises(Interrupted):
        stop.check()


def test_a_wait_for_a_batch_that_never_comes_is_ended_by_the_signal(stop):
    never = queue.Queue()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with stop:
        never.get()
    assert stop.requested
    assert not stop.waiting


def test_an_error_while_waiting_is_not_taken_for_a_stop(stop):
    with pytest.raises(ValueError, match="broken"), stop:
        raise ValueError("broken")
    assert not stop.waiting


@pytest.mark.skipif(
    not Path("/proc/self/oom_score_adj").exists(), reason="the kernel has no such file"
)
def test_a_worker_is_the_first_that_the_kernel_kills_for_want_of_memory():
    ours, theirs = multiprocessing.Pipe()

    def work() -> None:
        start_worker(0)
        theirs.send(Path("/proc/self/oom_score_adj").read_text())

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    assert ours.recv() == "1000\n"
    worker.join()
    assert Path("/proc/self/oom_score_adj").read_text() != "1000\n", "the training stays as it was"

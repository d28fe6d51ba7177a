"""Samples of a script's stack: they name the line that takes the time, and change nothing."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from polling import wait_until
from torch import nn

from stepscope.records.types import StackTime
from stepscope.trace import sampling_thread, stack_sampler
from stepscope.trace.allreduce_hooks import AllreduceWatch
from stepscope.trace.event_buffer import HookState
from stepscope.trace.sampling_thread import SamplingThread
from stepscope.trace.stack_sampler import EpochSpan, Parts, StackSampler

OFTEN_S = 0.002
IN_TRAINING = [EpochSpan("train", 0.0, 1e9)]


@contextmanager
def sampled(state: HookState | None = None) -> Iterator[StackSampler]:
    sampler = StackSampler(
        state or HookState(AllreduceWatch()), lambda frame: None, interval_s=OFTEN_S
    )
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def longest(sampler: StackSampler) -> StackTime:
    return sampler.times(IN_TRAINING, 0)[0]


def test_a_line_that_sleeps_gets_its_time() -> None:
    began = time.perf_counter()
    with sampled() as sampler:
        time.sleep(0.3)
    took_s = time.perf_counter() - began
    found = longest(sampler)
    assert str(found["line"]).startswith("test_stack_sampler.py:")
    assert found["code"] == "time.sleep(0.3)"
    assert found["where"] == "other"
    assert found["total_s"] == pytest.approx(took_s, rel=0.2)


def test_time_in_a_library_is_that_of_the_scripts_line() -> None:
    weights = [nn.Parameter(torch.ones(100)) for _ in range(300)]
    for weight in weights:
        weight.grad = torch.ones(100)
    with sampled() as sampler:
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            nn.utils.clip_grad_norm_(weights, 1.0, foreach=False)
    found = longest(sampler)
    assert found["activity"] == "gradient clipping"
    assert str(found["code"]).startswith("nn.utils.clip_grad_norm_(")


def test_a_generator_that_the_loop_iterates_over_makes_its_batches() -> None:
    def batches() -> Iterator[int]:
        for number in range(15):
            time.sleep(0.02)
            yield number

    state = HookState(AllreduceWatch())
    with sampled(state) as sampler:
        for _ in batches():
            state.in_backward = True
            time.sleep(0.005)
            state.in_backward = False
    made = next(each for each in sampler.times(IN_TRAINING, 0) if each["where"] == "other")
    assert (made["activity"], made["code"]) == ("loading", "time.sleep(0.02)")


def test_a_call_in_the_script_names_its_activity() -> None:
    value = torch.ones(())
    with sampled() as sampler:
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            for _ in range(1000):
                value.item()
    assert longest(sampler)["activity"] == "synchronising read"


def test_a_line_of_a_function_has_the_line_of_the_training_loop_that_called_it() -> None:
    def log_step() -> None:
        time.sleep(0.05)

    state = HookState(AllreduceWatch())
    with sampled(state) as sampler:
        for _ in range(3):
            state.in_backward = True
            time.sleep(0.03)
            state.in_backward = False
            log_step()
    found = {each["where"]: each for each in sampler.times(IN_TRAINING, 0)}
    assert found["other"]["code"] == "time.sleep(0.05)"
    assert found["other"]["called"] == "log_step()"
    assert found["other"]["call"] != found["other"]["line"]
    assert found["backward"]["call"] is found["backward"]["called"] is None


def test_strings_are_left_out_of_recorded_code() -> None:
    with sampled() as sampler:
        time.sleep({"hunter2": 0.1}["hunter2"])
    assert longest(sampler)["code"] == "time.sleep({'...': 0.1}['...'])"


def test_the_phase_is_the_one_that_is_open() -> None:
    state = HookState(AllreduceWatch())
    with sampled(state) as sampler:
        state.in_backward = True
        time.sleep(0.15)
        state.in_backward = False
    by_phase = {each["where"]: each["total_s"] for each in sampler.times(IN_TRAINING, 0)}
    assert max(by_phase, key=lambda phase: by_phase[phase]) == "backward"


def test_blocks_without_detail_are_not_sampled_nor_charged_to_the_line_after_them() -> None:
    state = HookState(AllreduceWatch())
    state.full = False
    with sampled(state) as sampler:
        time.sleep(0.3)
        state.full = True
        time.sleep(0.05)
    assert sum(each["total_s"] for each in sampler.times(IN_TRAINING, 0)) < 0.15


def test_samples_are_halved_and_stand_for_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stack_sampler, "_MOST", 16)
    began = time.perf_counter()
    with sampled() as sampler:
        time.sleep(0.4)
    took_s = time.perf_counter() - began
    found = sampler.times(IN_TRAINING, 0)
    assert sum(each["samples"] for each in found) < 16
    assert sum(each["total_s"] for each in found) == pytest.approx(took_s, rel=0.4)


def test_random_numbers_and_listed_threads_are_the_scripts_own() -> None:
    random.seed(1)
    torch.manual_seed(1)
    threads, state, drawn = threading.enumerate(), random.getstate(), torch.get_rng_state()
    with sampled():
        time.sleep(0.05)
        assert threading.enumerate() == threads
        assert random.getstate() == state
        assert torch.equal(torch.get_rng_state(), drawn)


def test_the_switch_interval_is_the_scripts_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_thread, "_FEW_THREADS", 100)  # those of pytest count too
    usual_s = sys.getswitchinterval()
    with sampled():
        assert wait_until(lambda: sys.getswitchinterval() < usual_s)
    assert sys.getswitchinterval() == usual_s


def test_variables_of_a_function_die_when_it_returns() -> None:
    class Large:
        pass

    def hold(references: list[weakref.ref[Large]]) -> None:
        large = Large()
        references.append(weakref.ref(large))
        time.sleep(0.02)

    with sampled() as sampler:
        for _ in range(20):
            references: list[weakref.ref[Large]] = []
            hold(references)
            assert references[0]() is None
    assert sampler.times(IN_TRAINING, 0)


def test_finalizers_run_in_the_scripts_thread() -> None:
    finalized_in = set()

    class Knot:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            finalized_in.add(threading.get_ident())

    with sampled():
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            Knot()
        assert gc.isenabled()
    gc.collect()
    assert finalized_in == {threading.get_ident()}


@pytest.mark.skipif(sys.platform != "linux", reason="what is blocked is read in /proc")
def test_signals_are_left_to_the_script() -> None:
    with sampled() as sampler:
        time.sleep(0.05)
        status = Path(f"/proc/self/task/{sampler._thread._native_id}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGCHLD):
        assert blocked >> (each - 1) & 1


def threads_of_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_fork_meets_no_thread_of_ours_and_sampling_goes_on_after_it() -> None:
    with sampled() as sampler:
        child = os.fork()
        if child == 0:
            os._exit(threads_of_process() if not sampling_thread._started else 99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        counted = sum(each["samples"] for each in sampler.times(IN_TRAINING, 0))
        time.sleep(0.1)
        assert sum(each["samples"] for each in sampler.times(IN_TRAINING, 0)) > counted


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_when_the_process_forks_the_thread_is_gone() -> None:
    thread = SamplingThread(lambda: None, OFTEN_S)
    thread.start()
    try:
        for _ in range(5):
            time.sleep(0.01)
            thread.pause()
            thread.await_removal()
            assert not Path(f"/proc/self/task/{thread._native_id}").exists()
            thread.resume()
    finally:
        thread.stop()


def test_a_look_that_fails_ends_the_sampling_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    thread = SamplingThread(fail, OFTEN_S)
    thread.start()
    time.sleep(0.05)
    began = time.perf_counter()
    thread.stop()
    thread.stop()
    assert time.perf_counter() - began < 0.5
    assert capfd.readouterr().err == ""


def test_a_machine_without_threads_is_traced_without_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sampling_thread._thread, "start_new_thread", refuse)
    with sampled() as sampler:
        time.sleep(0.02)
    assert sampler.times(IN_TRAINING, 0) == []


def test_parts_of_a_run_lie_around_its_epochs_and_evaluations() -> None:
    parts = Parts(
        [
            EpochSpan("train", 10.0, 17.0),
            EpochSpan("test", 12.0, 14.0),
            EpochSpan("train", 20.0, 25.0),
            EpochSpan("test", 26.0, 27.0),
        ]
    )
    named = {time_s: parts.at(time_s) for time_s in (1, 11, 13, 16, 18, 22, 26.5, 28)}
    assert named == {
        1: "preparation",
        11: None,
        13: "evaluation",
        16: None,
        18: "between epochs",
        22: None,
        26.5: "evaluation",
        28: "shutdown",
    }


def test_without_epochs_all_is_preparation() -> None:
    assert Parts([]).at(5.0) == "preparation"

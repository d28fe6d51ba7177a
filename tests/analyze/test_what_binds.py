"""A blocked host is no slow host: nine loops on an asynchronous device, and their opposites."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asynchronous_device import AsynchronousLoop, played
from written_tables import step, write_tables

from stepscope.analyze.bottleneck_shares import compute_s, wait_share
from stepscope.analyze.findings import findings_of
from stepscope.analyze.sweep_summary import metrics
from stepscope.analyze.what_binds import about_device, binding_steps, device_time

READ = ("synchronising read", "train.py:20", "loss.item()")
SCALER = ("synchronising read", "train.py:21", "scaler.step(optimizer)")
LOG = ("logging", "train.py:22", "print(loss)")
MADE = ("loading", "train.py:7", "make_batch()")


def training(
    loop: AsynchronousLoop,
    *,
    data_ms: float = 0.4,
    copy_ms: float = 0.3,
    pageable: bool = False,
    operations: int = 100,
    device_ms: float = 20.0,
    optimizer_ms: float = 2.0,
    scaler: bool = False,
    made_ms: float = 0.0,
    logged_ms: float = 0.0,
    read: bool = False,
) -> None:
    """Play one step of 20 ms on the device and 2 ms on the host, if nothing else is said."""
    if made_ms:
        loop.work(made_ms, MADE)
        loop.lap("other")
    else:
        loop.work(data_ms)
        loop.lap("data")
    loop.launch(1, copy_ms)
    if pageable:
        loop.wait()
    loop.lap("transfer")
    loop.launch(operations // 3, (device_ms - optimizer_ms) / 3)
    loop.lap("forward")
    loop.launch(operations // 2, 2 * (device_ms - optimizer_ms) / 3)
    loop.lap("backward")
    if scaler:
        loop.wait(SCALER)
        loop.lap("other")
    loop.launch(operations // 6, optimizer_ms)
    loop.lap("optimizer")
    if read:
        loop.wait(READ)
    if logged_ms:
        loop.work(logged_ms, LOG)


Step = Callable[[AsynchronousLoop], None]


def of(**about: float | bool) -> Step:
    return lambda loop: training(loop, **about)  # type: ignore[arg-type]


# What binds, and the findings.
LOOPS: dict[str, tuple[Step, str, set[str]]] = {
    "loss.item() every step": (of(read=True), "device", set()),
    "loss.item(), of tiny operations": (
        of(read=True, operations=1200, device_ms=1.0, optimizer_ms=0.1),
        "launch",
        {"launch_bound"},
    ),
    "never synchronises": (of(), "device", set()),
    "never synchronises, slow loader": (of(data_ms=60), "data", {"too_few_workers"}),
    "pageable copies": (of(pageable=True), "device", set()),
    "large copies": (of(pageable=True, copy_ms=15), "device", {"large_transfer"}),
    "GradScaler": (of(scaler=True), "device", set()),
    "GradScaler, slow optimiser": (
        of(scaler=True, optimizer_ms=10),
        "device",
        {"large_optimizer"},
    ),
    "slow loader": (of(data_ms=60, read=True), "data", {"too_few_workers"}),
    "quick loader": (of(data_ms=0.1, read=True), "device", set()),
    "loader hidden behind the device": (of(data_ms=12), "device", set()),
    "loader as slow again": (of(data_ms=30), "data", {"too_few_workers"}),
    "40 ms of logging": (of(logged_ms=40), "host", {"logging_in_loop"}),
    "logging hidden behind the device": (of(logged_ms=10), "device", set()),
    "own generator, slow": (of(made_ms=60), "data", {"loading_in_loop"}),
    "own generator, quick": (of(made_ms=5), "device", set()),
    "many tiny operations": (
        of(operations=1200, device_ms=1.0, optimizer_ms=0.1),
        "launch",
        {"launch_bound"},
    ),
    "few large operations": (of(operations=12), "device", set()),
}


@pytest.mark.parametrize("clock", [(0.0, 0.0), (1e6, 1e-3), (-1e6, -1e-3)], ids=str)
@pytest.mark.parametrize("name", LOOPS)
def test_what_binds_a_loop_is_found_and_nothing_else(
    tmp_path: Path, name: str, clock: tuple[float, float]
) -> None:
    do_step, bound_by, findings = LOOPS[name]
    run = played(tmp_path, do_step, offset_ms=clock[0], drift=clock[1])
    device = run.summary["device"]
    assert device is not None
    assert (device["bound_by"], {each.name for each in findings_of(run)}) == (bound_by, findings), (
        device["waits"],
        findings_of(run),
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "loss.item() every step",
            "Nothing obvious to gain. Device-bound: the device is busy 9x of the time, and the "
            "host waits for it at train.py:20 (`loss.item()`).",
        ),
        (
            "pageable copies",
            "Nothing obvious to gain. Device-bound: the device is busy 9x of the time, and "
            "copying batches waits for it.",
        ),
        (
            "GradScaler",
            "Nothing obvious to gain. Device-bound: the device is busy 9x of the time, and the "
            "host waits for it at train.py:21 (`scaler.step(optimizer)`).",
        ),
        (
            "logging hidden behind the device",
            "Nothing obvious to gain. Device-bound: the device is busy 9x of the time, and the "
            "host's other work is hidden behind it at train.py:22 (`print(loss)`).",
        ),
        (
            "loader hidden behind the device",
            "Nothing obvious to gain. Device-bound: the device is busy 9x of the time, and "
            "loading is hidden behind it.",
        ),
        (
            "never synchronises",
            "Nothing obvious to gain. Device-bound: the device is busy 9x of the time, and "
            "launching waits for it.",
        ),
        ("many tiny operations", "Launch-bound: the device waits 9x for the host to launch"),
    ],
)
def test_the_verdict_says_who_waits_for_whom(tmp_path: Path, name: str, said: str) -> None:
    run = played(tmp_path, LOOPS[name][0])
    text = re.sub(r"\b(9\d\.\d|100\.0) %", "9x", run.summary["verdict"]["text"])
    assert text.startswith(said)


def test_trials_on_a_device_are_compared_by_what_delays_them(tmp_path: Path) -> None:
    steady = metrics(played(tmp_path, LOOPS["loader hidden behind the device"][0]))["steady"]
    assert wait_share(steady) < 0.05
    assert compute_s(steady) == pytest.approx(0.02, rel=0.05)


def test_on_a_cpu_there_is_no_second_timeline(tmp_path: Path) -> None:
    run = write_tables(tmp_path, [step(1)])
    assert device_time(run.steps, []) is None
    assert binding_steps(run.steps) is run.steps


def test_shares_of_the_devices_time_add_up_and_dropped_epochs_are_left_out(tmp_path: Path) -> None:
    run = played(tmp_path, LOOPS["slow loader"][0], steps=10)
    found = device_time(run.steps, [])
    assert found is not None
    assert sum(phase["share"] for phase in found["phases"].values()) == pytest.approx(1)
    assert device_time(run.steps, [1]) is None


def test_before_the_device_had_its_time_outside_the_phases_nothing_is_said(tmp_path: Path) -> None:
    run = played(tmp_path, LOOPS["slow loader"][0], steps=10)
    del run.steps.columns["other_device_s"]
    found = device_time(run.steps, [])
    assert found is not None
    assert (found["bound_by"], found["waits"]) == (None, None)
    older: Any = {"phases": found["phases"], "issue_s": 1.0, "bound_by": "host"}
    assert about_device(older) == ""

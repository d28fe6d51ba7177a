"""The hooks in scripts that train on a GPU: nothing may go wrong there, and the times are right."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_cuda
import pytest
import torch
from fake_cuda import Busy, Counts, launch
from torch import distributed, nn

from stepscope.meter import device_timeline
from stepscope.meter.clock import now_ns
from stepscope.records import schema
from stepscope.records.table import read_table
from stepscope.records.types import TraceOutcome
from stepscope.stats.intervals import median
from stepscope.trace.tracer import Tracer

FORWARD_MS, BACKWARD_MS, STEPS = 2.0, 4.0, 6


@dataclass
class Traced:
    """A script's process with hooks, and what they recorded once it has ended."""

    gpu: Counts
    tracer: Tracer
    outcome: TraceOutcome = field(default_factory=dict)  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = field(default_factory=list)
    waited: int = 0  # how often anything waited for the device before the end

    @property
    def absent(self) -> dict[str, str]:
        return self.outcome.get("absent", {})

    def median_ms(self, column: str) -> float:
        """The median of a column, without the first steps: by then the device lags behind."""
        return 1e3 * median([row[column] for row in self.rows[2:]])


@contextmanager
def traced(folder: Path) -> Iterator[Traced]:
    for name in (schema.STEPS, schema.EPOCHS):
        (folder / name).write_text(",".join(schema.COLUMNS[name]) + "\n", encoding="utf-8")
    with fake_cuda.installed() as gpu:
        tracer = Tracer(folder, now_ns())
        tracer.start()
        script = Traced(gpu, tracer)
        try:
            yield script
        finally:
            script.waited = gpu.synchronizations
            script.outcome = tracer.final_message()
        assert tracer.trouble is None
        assert gpu.while_capturing == 0, "nothing is asked of a stream that is being captured"
        table = read_table(folder / schema.STEPS)
        columns = (table[name] for name in schema.STEP_COLUMNS)
        script.rows = [
            dict(zip(schema.STEP_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)
        ]


def batch(device: str) -> Any:
    return torch.ones(8, 4).to(device, non_blocking=True)


def train(
    model: nn.Module,
    device: str,
    steps: int = STEPS,
    move: Callable[[str], Any] | None = None,
    loss_of: Callable[[Any], Any] = torch.mean,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = batch(device)
    for _ in range(steps):
        loss = loss_of(model(inputs if move is None else move(device)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def on_its_own_stream(script: Traced) -> None:
    with torch.cuda.stream(torch.cuda.Stream(0)):
        train(Busy(FORWARD_MS, BACKWARD_MS).to("cuda:0"), "cuda:0")


def on_the_second_gpu(script: Traced) -> None:
    train(Busy(FORWARD_MS, BACKWARD_MS).to("cuda:1"), "cuda:1")
    assert script.gpu.contexts == {1}, "the first GPU is left alone"


def after_a_trial_on_the_cpu(script: Traced) -> None:
    model = Busy(FORWARD_MS, BACKWARD_MS)
    model(torch.ones(8, 4))
    assert script.gpu.contexts == set()
    train(model.to("cuda:0"), "cuda:0")


def with_copies_on_a_side_stream(script: Traced) -> None:
    side = torch.cuda.Stream(0)

    def prefetch(device: str) -> Any:
        with torch.cuda.stream(side):
            launch(3.0)  # hidden behind the step before
            moved = batch(device)
        torch.cuda.current_stream().wait_stream(side)
        return moved

    train(Busy(FORWARD_MS, BACKWARD_MS).to("cuda:0"), "cuda:0", move=prefetch)


@pytest.mark.parametrize(
    "script",
    [
        on_its_own_stream,
        on_the_second_gpu,
        after_a_trial_on_the_cpu,
        with_copies_on_a_side_stream,
    ],
)
def test_device_time_is_that_of_the_models_device_and_stream(script, tmp_path):
    with traced(tmp_path) as found:
        script(found)
    assert found.waited == 0, "no hook waits for the device"
    assert len(found.rows) == STEPS
    assert found.median_ms("forward_device_s") == pytest.approx(FORWARD_MS, rel=0.2)
    assert found.median_ms("backward_device_s") == pytest.approx(BACKWARD_MS, rel=0.2)
    assert [row["loss"] for row in found.rows] == [row["loss"] for row in found.rows if row["loss"]]
    assert found.absent.keys() & {"device", "device_events", "other_devices", "loss"} == set()


def test_a_script_that_stays_on_the_cpu_makes_no_context(tmp_path):
    with traced(tmp_path) as script:
        train(Busy(), "cpu")
    assert (script.gpu.contexts, script.gpu.events, script.gpu.pinned) == (set(), 0, 0)
    assert script.rows[0]["forward_device_s"] is None


def test_other_gpus_are_named_as_not_timed(tmp_path):
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 3).to("cuda:1")

        def forward(self, values: Any) -> Any:
            return self.second(self.first(values).to("cuda:1"))

    with traced(tmp_path) as script:
        train(Halves(), "cuda:0")
    assert script.absent["other_devices"] == "not timed: cuda:1. Times are those of cuda:0"
    assert len(script.rows) == STEPS
    assert "it is on cuda:1" in script.absent["loss"], "its copy may come after the marks"


def test_a_mark_that_fails_is_switched_off_and_the_script_goes_on(tmp_path, monkeypatch):
    with traced(tmp_path) as script:
        model = Busy(FORWARD_MS, BACKWARD_MS).to("cuda:0")
        train(model, "cuda:0", 2)

        def refuse(event: Any, stream: Any = None) -> None:
            raise RuntimeError("CUDA error: out of events")

        monkeypatch.setattr(fake_cuda.Event, "record", refuse)
        train(model, "cuda:0", 4)
    assert len(script.rows) == 6, "the steps are recorded all the same"
    assert script.rows[-1]["forward_device_s"] is None
    assert script.rows[-1]["loss"] is None, "its copy may not have arrived"
    assert "CUDA error: out of events" in script.absent["device_events"]


def test_the_loss_of_a_dtensor_is_not_read(tmp_path):
    # These imports take seconds.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (1,))

        def shared(values: Any) -> Any:
            return DTensor.from_local(torch.mean(values), mesh, [Replicate()], run_check=False)

        with traced(tmp_path) as script:
            train(Busy(), "cpu", loss_of=shared)
    finally:
        distributed.destroy_process_group()
    assert len(script.rows) == STEPS
    assert "DTensor may communicate" in script.absent["loss"]


def test_replays_of_a_captured_step_are_steps(tmp_path):
    with traced(tmp_path) as script:
        model = Busy(FORWARD_MS, BACKWARD_MS).to("cuda:0")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = batch("cuda:0")

        def step() -> None:
            optimizer.zero_grad()
            torch.mean(model(inputs)).backward()
            optimizer.step()

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(STEPS):
            graph.replay()
    assert len(script.rows) == 1 + STEPS, "one before the capture, which is none itself"
    assert script.median_ms("optimizer_device_s") == pytest.approx(
        FORWARD_MS + BACKWARD_MS, rel=0.2
    )


def test_replays_without_an_update_are_named_as_the_reason_for_no_step(tmp_path):
    with traced(tmp_path) as script:
        model, inputs = Busy().to("cuda:0"), batch("cuda:0")
        torch.mean(model(inputs)).backward()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mean(model(inputs)).backward()
        graph.replay()
    assert not script.rows
    assert "CUDA graphs" in script.absent["phases"]


def test_nothing_is_asked_of_a_stream_that_is_captured_without_notice(tmp_path):
    with traced(tmp_path) as script:
        model = Busy(FORWARD_MS, BACKWARD_MS).to("cuda:0")
        train(model, "cuda:0", 2)
        torch.cuda.current_stream().capturing = fake_cuda.gpu.capture = torch.cuda.CUDAGraph()
        train(
            model,
            "cuda:0",
            1,
            move=lambda device: torch.ones(8, 4).as_subclass(fake_cuda.CudaTensor),
        )
        torch.cuda.current_stream().capturing = fake_cuda.gpu.capture = None
        train(model, "cuda:0", 3)
    timed = [row["forward_device_s"] is not None for row in script.rows]
    assert timed[2] is False, "the captured step has no device time"
    assert timed[-1] is True


def test_an_optimizer_that_steps_on_autograds_thread_is_seen(tmp_path):
    with traced(tmp_path) as script:
        model = Busy(FORWARD_MS, BACKWARD_MS).to("cuda:0")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        script.tracer._hooks.has_threads = True  # as with a thread that pins memory

        def step_elsewhere(weight: Any) -> None:
            """As autograd does: on a thread that Python has not started."""
            done = _thread.allocate_lock()
            done.acquire()

            def run() -> None:
                optimizer.step()
                optimizer.zero_grad()
                done.release()

            _thread.start_new_thread(run, ())
            done.acquire()

        model.linear.weight.register_post_accumulate_grad_hook(step_elsewhere)
        for _ in range(STEPS):
            torch.mean(model(batch("cuda:0"))).backward()
    assert len(script.rows) == STEPS


def test_events_are_reused_in_a_long_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr(device_timeline, "_MOST_OPEN", 64)
    with traced(tmp_path) as script:
        model = Busy().to("cuda:0")
        train(model, "cuda:0", 2)
        with torch.no_grad():
            for _ in range(200):
                model(batch("cuda:0"))
        train(model, "cuda:0", 2)
    assert script.gpu.events <= 66
    assert script.gpu.pinned == 1
    assert all(row["forward_device_s"] is not None for row in script.rows)


def test_a_forked_process_destroys_no_object_of_the_device(tmp_path):
    with traced(tmp_path) as script:
        train(Busy(FORWARD_MS, BACKWARD_MS).to("cuda:0"), "cuda:0")
        child = os.fork()
        if child == 0:
            script.tracer.leave_to_parent()
            script.tracer._hooks.buffer.fields.clear()
            device_timeline._QUEUES.clear()
            script.tracer = None  # type: ignore[assignment]
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(script.rows) == STEPS

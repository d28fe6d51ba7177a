"""What is asked of a device's memory. torch's own answers are scripted: there is no GPU here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted_device_memory import MIB, ScriptedMemory

from stepscope.hardware import gpu as gpu_processes
from stepscope.hardware import host
from stepscope.hardware.gpu import Gpu
from stepscope.meter.clock import now_ns
from stepscope.meter.device_memory import (
    CudaMemory,
    DevicePool,
    HostMemory,
    MpsMemory,
    device_memory_of,
    host_memory,
)
from stepscope.trace import tracer

BEFORE = HostMemory(available_bytes=4000 * MIB, resident_bytes=300 * MIB)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU of 8 GiB that is free but for 1,000 MiB, of which torch has 600."""
    gpu = SimpleNamespace(is_integrated=0, total_memory=8192 * MIB, uuid="12-34")
    said: dict[str, Any] = {
        "get_device_properties": gpu,
        "mem_get_info": (7192 * MIB, 8192 * MIB),
        "memory_reserved": 600 * MIB,
        "max_memory_reserved": 700 * MIB,
    }
    for name in said:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: said[name])
    monkeypatch.setattr(gpu_processes, "used_bytes", lambda uuid, process: said.get("own"))
    return said


def test_the_context_is_what_the_driver_counts_beyond_torchs_part(cuda):
    memory = CudaMemory(torch.device("cuda"), BEFORE)
    cuda["own"] = 850 * MIB
    assert memory.context().bytes == 250 * MIB
    assert memory.limit_bytes() == (8192 - 150) * MIB, "others have 150 MiB"
    assert (memory.reserved_bytes(), memory.peak_reserved_bytes()) == (600 * MIB, 700 * MIB)


def test_where_the_driver_does_not_tell_others_are_counted_in_and_that_is_said(cuda):
    memory = CudaMemory(torch.device("cuda"), BEFORE)
    context = memory.context()
    assert context.bytes == 400 * MIB
    assert "other programs" in context.note
    assert memory.limit_bytes() == 8192 * MIB


def test_on_a_board_the_context_is_what_the_machine_has_less(cuda, monkeypatch):
    cuda["get_device_properties"].is_integrated = 1
    now = HostMemory(available_bytes=2900 * MIB, resident_bytes=500 * MIB)
    monkeypatch.setattr("stepscope.meter.device_memory.host_memory", lambda: now)
    memory = CudaMemory(torch.device("cuda"), BEFORE)
    assert memory.unified
    context = memory.context()
    assert (context.bytes, context.how) == ((1100 - 200 - 600) * MIB, "calibrated")
    assert memory.limit_bytes() == 8192 * MIB


def test_an_apple_gpu_keeps_the_most_that_was_seen(monkeypatch):
    sizes = iter((5, 9, 7, 3))
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: next(sizes))
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 100)
    memory = MpsMemory()
    assert [memory.reserved_bytes() for _ in range(3)] == [5, 9, 7]
    assert memory.peak_reserved_bytes() == 9
    assert (memory.unified, memory.context().bytes, memory.limit_bytes()) == (True, 0, 100)
    monkeypatch.delattr(torch.mps, "recommended_max_memory")  # as in torch 2.4
    assert memory.limit_bytes() == host.memory_bytes()


def test_a_cpu_has_no_pool_beside_the_hosts():
    assert device_memory_of(torch.device("cpu"), host_memory()) is None
    assert isinstance(device_memory_of(torch.device("cuda:1"), BEFORE), CudaMemory)
    assert isinstance(device_memory_of(torch.device("mps"), BEFORE), MpsMemory)


def test_a_peak_that_the_script_resets_is_kept(monkeypatch):
    memory = ScriptedMemory()
    pool = DevicePool(memory)
    monkeypatch.setattr(memory, "peak_reserved_bytes", lambda: 900 * MIB)
    pool.now()
    monkeypatch.setattr(memory, "peak_reserved_bytes", lambda: 100 * MIB)
    assert pool.at_end()["peak_bytes"] == (300 + 900) * MIB


def test_while_a_run_goes_on_only_the_allocators_counts_are_asked_for():
    memory = ScriptedMemory()
    pool = DevicePool(memory)
    memory.asked.clear()
    sent = [pool.now(), pool.now()]
    assert sent[0] == {"type": "device_memory", "bytes": 364 * MIB, "unified": False}
    assert memory.asked == ["reserved", "peak"] * 2
    memory.context_bytes += 10 * MIB  # kernels that were loaded meanwhile
    assert pool.at_end() == {"peak_bytes": 375 * MIB, "context_bytes": 310 * MIB}


@pytest.mark.parametrize(
    ("memory", "change"),
    [
        # Loader workers have started: the machine has less, and the context is a difference.
        (ScriptedMemory(unified=True, how="calibrated"), {"context_bytes": 800 * MIB}),
        (ScriptedMemory(), {"failed": True}),
    ],
)
def test_a_context_that_cannot_be_read_again_stays_as_it_was_found(memory, change):
    pool = DevicePool(memory)
    for name, value in change.items():
        setattr(memory, name, value)
    assert pool.at_end() == {"peak_bytes": 365 * MIB, "context_bytes": 300 * MIB}


class _RefusalError(Exception):
    pass


def gpu_with(*processes: tuple[int, int | None], refuses: bool = False) -> Gpu:
    def running(handle: object) -> list[SimpleNamespace]:
        if refuses:
            raise _RefusalError
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]

    library = SimpleNamespace(
        NVMLError=_RefusalError,
        nvmlDeviceGetUUID=lambda handle: "GPU-12-34",
        nvmlDeviceGetComputeRunningProcesses=running,
    )
    return Gpu(0, None, library)


@pytest.mark.parametrize(
    ("gpu", "uuid", "used"),
    [
        (gpu_with((7, 10), (8, 20)), "12-34", 20),
        (gpu_with((7, 10)), "12-34", None),  # in a container, processes have other numbers
        (gpu_with((8, None)), "12-34", None),
        (gpu_with((8, 20)), "56-78", None),
        (gpu_with(refuses=True), "12-34", None),
    ],
)
def test_the_driver_tells_what_a_process_holds_or_nothing(gpu, uuid, used):
    assert gpu_processes.used_bytes(uuid, 8, [gpu]) == used


def test_a_traced_script_tells_what_it_holds_of_its_device(tmp_path, monkeypatch):
    scripted = ScriptedMemory()
    monkeypatch.setattr(tracer, "device_memory_of", lambda device, before: scripted)
    (tmp_path / "steps.csv").write_text("")
    (tmp_path / "epochs.csv").write_text("")
    sent: list[dict[str, Any]] = []
    watching = tracer.Tracer(tmp_path, now_ns(), send=sent.append)
    watching.start()
    try:
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
    finally:
        words = watching.final_message()
    assert sent[-1] == {"type": "device_memory", "bytes": 364 * MIB, "unified": False}
    assert words["device_memory"] == {"peak_bytes": 365 * MIB, "context_bytes": 300 * MIB}

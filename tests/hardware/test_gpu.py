"""GPUs by a library that answers as NVML would: current figures, energy sensors, and refusals."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.errors import MachineError
from stepscope.hardware import gpu
from stepscope.hardware.energy import gpu_nvml

# ruff: noqa: N802 (the names of NVML)


class RefusingNvml:
    """The library as an Orin has it: it starts, lists the GPU, and refuses what it is asked."""

    class NVMLError(Exception):
        pass

    count = 1

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise self.NVMLError("Not Supported")


class PowerOnlyNvml(RefusingNvml):
    """A GPU from before Volta."""

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 61_500


class TwoGpus(RefusingNvml):
    """The library on a machine with an idle GPU and a busy one that is held back."""

    count = 2

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=97 * handle)

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return 900

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 83

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x04 | 0x20


class Split(TwoGpus):
    """Two GPUs of one kind, the second of which is divided into two MIG instances."""

    names = ("A100", "A100")

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.names[handle]

    def nvmlDeviceGetUUID(self, handle: int | str) -> str:
        return f"GPU-{handle}{handle}" if isinstance(handle, int) else handle

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7 * handle

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:
        if index > 1:
            raise self.NVMLError("Not Found")
        return f"MIG-{handle}-{index}"


class OfTwoKinds(Split):
    names = ("A100", "T4")


@pytest.mark.parametrize(
    ("library", "chosen", "seen"),
    [
        (Split, None, [0, 1]),
        (Split, "1", [1]),
        (Split, "1,0", [1, 0]),
        (Split, "", []),
        (Split, "-1", []),
        (Split, "0,-1,1", [0]),
        (Split, "GPU-1", [1]),
        (Split, "GPU-9", [0, 1]),  # unknown
        (Split, "MIG-1-1", [1]),
        (Split, "MIG-GPU-11/2/0", [1]),
        (OfTwoKinds, "1", [0, 1]),  # CUDA counts from the fastest
        (OfTwoKinds, "GPU-11", [1]),
    ],
)
def test_the_gpus_of_a_run_are_those_that_it_may_see(library, chosen, seen):
    found = gpu.visible(gpu.gpus_of(library()), chosen, by_bus=False)
    assert [each.index for each in found] == seen


def test_gpus_in_the_order_of_their_bus_are_known_by_number():
    found = gpu.visible(gpu.gpus_of(OfTwoKinds()), "1", by_bus=True)
    assert [each.index for each in found] == [1]


def test_wsl2_may_have_a_gpu(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert gpu.may_have_gpu(tmp_path)


def test_the_busiest_gpu_is_told_by_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "find_gpus", lambda root: gpu.gpus_of(TwoGpus()))
    figures = gpu.Devices(tmp_path).read()
    assert figures == gpu.DeviceFigures(97.0, 900.0, 83.0, ("power cap", "heat (driver)"), index=1)


def test_a_gpu_that_refuses_both_questions_raises_at_each(tmp_path):
    sensors = gpu_nvml.find(tmp_path, lambda root: gpu.gpus_of(RefusingNvml()))
    assert [sensor.kind for sensor in sensors] == ["counter", "power"]
    for sensor in sensors:
        with pytest.raises(MachineError, match=r"NVML refuses .* on GPU 0: Not Supported"):
            sensor.read()


def test_a_gpu_without_a_counter_has_its_power(tmp_path):
    counter, power = gpu_nvml.find(tmp_path, lambda root: gpu.gpus_of(PowerOnlyNvml()))
    with pytest.raises(MachineError):
        counter.read()
    assert power.read() == pytest.approx(61.5)


def test_a_gpu_without_the_library_names_the_extra(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    def missing() -> object:
        raise ModuleNotFoundError("pynvml")

    with pytest.raises(MachineError, match=r"stepscope\[energy\]"):
        gpu.find_gpus(tmp_path, missing)


def test_the_real_library_without_a_driver_is_refused_in_words(tmp_path):
    pytest.importorskip("pynvml")
    if gpu.may_have_gpu(Path("/")):
        pytest.skip("this machine has a driver")
    with pytest.raises(MachineError, match="NVML does not start"):
        gpu.gpus_of(importlib.import_module("pynvml"))


def test_a_machine_that_shows_no_gpu_does_not_load_the_library(tmp_path):
    def loaded() -> object:
        raise AssertionError("it was loaded")

    assert gpu.find_gpus(tmp_path, loaded) == []

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

"""What an accelerator does now, by a library that answers as NVML would."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.hardware import gpu as device_figures
from stepscope.hardware import gpu as nvml


class TwoGpus:
    """The library on a machine with an idle GPU and a busy one that is held back."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=97 * handle)

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return 900

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 83

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x04 | 0x20


def test_the_busiest_gpu_is_told_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_figures, "find_gpus", lambda root: nvml.gpus_of(TwoGpus()))
    figures = device_figures.Devices(tmp_path).read()
    assert figures == device_figures.DeviceFigures(
        97.0, 900.0, 83.0, ("power cap", "heat (driver)"), index=1
    )

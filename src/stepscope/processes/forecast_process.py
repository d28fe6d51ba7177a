"""Forecast the memory of a training: `python -m stepscope.processes.forecast_process`."""

from __future__ import annotations

from typing import cast

from stepscope.processes.answer import answer_once, needing_torch
from stepscope.records.types import MemoryAnswer, RecordedSpec
from stepscope.settings.load_settings import validate


def forecast(request: RecordedSpec) -> MemoryAnswer:
    """Return the resolved spec and its memory forecast."""
    with needing_torch("a forecast"):
        import torch

        from stepscope.memory_forecast.fit_check import check_fit
        from stepscope.meter.device_memory import device_memory_of, host_memory
        from stepscope.train.device import resolve
        from stepscope.train.training_setup import build_model
    spec = resolve(validate(request))
    memory = device_memory_of(torch.device(spec.device), host_memory())
    checked = check_fit(spec, build_model(spec), memory).to_json()
    return cast("MemoryAnswer", {"spec": spec.model_dump(mode="json"), **checked})


if __name__ == "__main__":
    answer_once(forecast)

"""Check whether a training fits into memory before it starts, and find remedies if not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import cast

from torch import nn

from stepscope.data import dataset_registry
from stepscope.errors import OutOfMemoryError
from stepscope.memory_forecast.forecast import ForecastInputs, forecast, probe_steps
from stepscope.memory_forecast.memory_bill import Bill
from stepscope.memory_forecast.worker_memory import worker_bytes
from stepscope.meter.device_memory import DeviceMemory
from stepscope.models.step_tensors import StepMemory, UnlikeSteps
from stepscope.records.types import BillItem, MemoryForecast, RecordedSpec, RemedyRecord
from stepscope.settings import RunSpec
from stepscope.train.activation_checkpointing import recomputing
from stepscope.train.source_settings import data_source_of
from stepscope.units import format_bytes

# Search for remedies only above this share of the limit: the search takes time.
_REMEDIES_FROM = 0.5
_MOST_REMEDIES = 3

# The memory guard ends a run near its limit; remedies keep a distance.
AIM = 0.9

# Of the limit: nearer to it, the guard of `supervisor.memory_guard` ends a worker.
WORKERS_STAY_BELOW = 0.95


@dataclass(frozen=True)
class FitCheck:
    """A forecast, or the reason why there is none.

    `workers_that_fit` is None if the training does not fit even without workers.
    """

    bill: Bill | None = None
    step: StepMemory | None = None
    remedies: tuple[RemedyRecord, ...] = ()
    reason: str | None = None
    remedies_reason: str | None = None
    workers: int = 0
    workers_that_fit: int | None = None

    def to_json(self) -> MemoryForecast:
        """Return the bill, the phases and the remedies as JSON values."""
        if self.bill is None or self.step is None:
            return {"reason": self.reason}
        bill, binding = self.bill, self.bill.binding
        return {
            "items": {name: cast("BillItem", asdict(item)) for name, item in bill.items.items()},
            "total_bytes": bill.total_bytes,
            "limit_bytes": bill.limits[binding].bytes,
            "limit_of": bill.limits[binding].of,
            "limit_pool": binding,
            "limits": {
                pool: {"of": each.of, "bytes": each.bytes, "needed_bytes": bill.pool_bytes(pool)}
                for pool, each in bill.limits.items()
            },
            "fits": bill.fits,
            "peak_phase": self.step.peak_phase,
            "at_peak": dict(self.step.at_peak),
            "phases": dict(self.step.phases),
            "remedies": list(self.remedies),
            "remedies_reason": self.remedies_reason,
            "workers": self.workers,
            "workers_that_fit": self.workers_that_fit,
        }


def check_fit(
    spec: RunSpec, model: nn.Module, memory: DeviceMemory | None = None, processes: int = 1
) -> FitCheck:
    """Forecast the memory of a training; `memory` is None on a CPU."""
    dataset = dataset_registry.find(spec.data, data_source_of(spec))
    try:
        seen = probe_steps(spec, model, dataset, memory)
        workers = worker_bytes(spec, dataset) if spec.workers else 0
        inputs = ForecastInputs(seen, dataset, workers, processes)
        bill = forecast(spec, inputs)
    except Exception as error:  # a network may fail on a batch that the run never has
        return FitCheck(reason=_why_not(error))
    fit = FitCheck(
        bill,
        seen.step(spec.batch_size),
        workers=spec.workers,
        workers_that_fit=_workers_that_fit(spec, inputs, bill),
    )
    if bill.filled_share(bill.binding) <= _REMEDIES_FROM:
        return fit
    found, untried = _find_remedies(spec, model, inputs, memory)
    return replace(fit, remedies=tuple(found), remedies_reason=untried)


def _workers_that_fit(spec: RunSpec, inputs: ForecastInputs, bill: Bill) -> int | None:
    alone = {"workers": 0, "persistent_workers": False}
    without = forecast(spec.model_copy(update=alone), inputs)
    pool = bill.host_pool
    others_fit = all(bill.fits_into(each) for each in bill.limits if each != pool)
    if not (without.fits and others_fit):
        return None
    each_bytes = (bill.pool_bytes(pool) - without.pool_bytes(pool)) / max(1, spec.workers)
    room_bytes = WORKERS_STAY_BELOW * bill.limits[pool].bytes - without.pool_bytes(pool)
    if each_bytes * spec.workers <= room_bytes:
        return spec.workers
    return max(0, int(room_bytes // each_bytes)) if each_bytes else spec.workers


def _find_remedies(
    spec: RunSpec, model: nn.Module, inputs: ForecastInputs, memory: DeviceMemory | None
) -> tuple[list[RemedyRecord], str | None]:
    """Return remedies, and the reason if recomputed activations could not be tried."""
    recomputed = None
    try:
        with contextlib.ExitStack() as stack:
            if not spec.checkpoint_activations and stack.enter_context(recomputing(model)):
                seen = probe_steps(spec, model, inputs.dataset, memory)
                # The trial has enlarged the process; its runtime memory has not changed.
                seen = replace(seen, runtime_bytes=inputs.probe.runtime_bytes)
                recomputed = replace(inputs, probe=seen)
        return remedies(spec, inputs, recomputed), None
    except Exception as error:  # the network may fail, now on a device that is nearly full
        reason = f"--checkpoint-activations could not be tried: {_why_not(error)}"
    if memory is not None:
        memory.reset()  # the tensors of the failed step are freed only now
    return remedies(spec, inputs, None), reason


def remedies(
    spec: RunSpec, inputs: ForecastInputs, recomputing: ForecastInputs | None
) -> list[RemedyRecord]:
    """Return the best remedies, those that fit first.

    `recomputing` are the inputs with recomputed activations, if the network has blocks.
    """
    now = forecast(spec, inputs)
    pool = now.binding
    found: list[RemedyRecord] = []
    for settings, own_inputs in _candidates(spec, inputs, recomputing):
        bill = forecast(spec.model_copy(update=settings), own_inputs)
        if bill.pool_bytes(pool) < now.pool_bytes(pool):
            found.append(
                {
                    "settings": settings,
                    "total_bytes": bill.total_bytes,
                    "pool": pool,
                    "pool_bytes": bill.pool_bytes(pool),
                    "fits": bill.fits,
                }
            )
    found.sort(key=lambda remedy: not remedy["fits"])
    return found[:_MOST_REMEDIES]


def _candidates(
    spec: RunSpec, inputs: ForecastInputs, recomputing: ForecastInputs | None
) -> Iterator[tuple[RecordedSpec, ForecastInputs]]:
    size = spec.batch_size
    smaller = largest_batch(spec, inputs)
    if smaller is not None and smaller < size:
        yield {"batch_size": smaller}, inputs
        parts = next(each for each in range(-(-size // smaller), size + 1) if size % each == 0)
        yield {"batch_size": size // parts, "accumulate": spec.accumulate * parts}, inputs
    elif size > 1:
        yield {"batch_size": 1}, inputs
    if recomputing is not None and not spec.checkpoint_activations:
        yield {"checkpoint_activations": True}, recomputing
    if spec.workers:
        yield {"workers": 0, "persistent_workers": False}, inputs
    if spec.source == "memory":
        yield {"source": "local"}, inputs


def largest_batch(spec: RunSpec, inputs: ForecastInputs) -> int | None:
    """Return the largest batch size, up to that of the spec, that fits with a margin."""

    def fits(batch_size: int) -> bool:
        bill = forecast(spec.model_copy(update={"batch_size": batch_size}), inputs)
        return all(bill.fits_into(pool, AIM) for pool in bill.limits)

    low, high = 0, spec.batch_size
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None


def _why_not(error: Exception) -> str:
    if isinstance(error, UnlikeSteps):
        return "the network runs different operations for two and for three samples"
    return f"a small step failed: {type(error).__name__}: {error}"


def require_fit(forecast_check: FitCheck) -> None:
    """Raise if the run does not fit even without workers, which the memory guard ends first."""
    bill = forecast_check.bill
    if bill is None or bill.fits or forecast_check.workers_that_fit is not None:
        return
    pool = bill.binding
    limit = bill.limits[pool]
    raise OutOfMemoryError(
        f"not started: the forecast is {format_bytes(bill.pool_bytes(pool))}, the limit "
        f"{format_bytes(limit.bytes)} ({limit.of}). --force starts it anyway"
    )

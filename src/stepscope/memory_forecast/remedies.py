"""Settings that lower the memory of a training, each with its forecast."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.memory_forecast.forecast import ForecastInputs, forecast
from stepscope.records.types import RecordedSpec, RemedyRecord
from stepscope.settings import RunSpec

MOST = 3

# The memory guard ends a run near its limit; recommendations keep a distance.
AIM = 0.9


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
    return found[:MOST]


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

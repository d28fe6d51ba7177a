"""Settings that lower the memory of a training, each with its forecast."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.memory_forecast.forecast import ForecastInputs, forecast
from stepscope.memory_forecast.memory_bill import Bill
from stepscope.records.types import RecordedSpec, RemedyRecord
from stepscope.settings import RunSpec

MOST = 3

# The memory guard ends a run near its limit; recommendations keep a distance.
AIM = 0.9


def remedies(
    spec: RunSpec, inputs: ForecastInputs, recomputing: ForecastInputs | None
) -> list[RemedyRecord]:
    """Return the best remedies, those that fit first.

    `recomputing` are the inputs of the same network with recomputed activations, if it has blocks.
    """
    now = forecast(spec, inputs)
    pool = now.binding
    found: list[RemedyRecord] = [
        {
            "settings": settings,
            "total_bytes": bill.total_bytes,
            "pool": pool,
            "pool_bytes": bill.pool_bytes(pool),
            "fits": bill.fits,
        }
        for settings, bill in _candidates(spec, inputs, recomputing)
        if bill.pool_bytes(pool) < now.pool_bytes(pool)
    ]
    found.sort(key=lambda remedy: not remedy["fits"])
    return found[:MOST]


def _candidates(
    spec: RunSpec, inputs: ForecastInputs, recomputing: ForecastInputs | None
) -> Iterator[tuple[RecordedSpec, Bill]]:
    smaller = largest_batch(spec, inputs)
    if smaller is not None and smaller < spec.batch_size:
        yield _with(spec, inputs, batch_size=smaller)
        parts = _parts(spec.batch_size, smaller)
        yield _with(
            spec,
            inputs,
            batch_size=spec.batch_size // parts,
            accumulate=spec.accumulate * parts,
        )
    elif spec.batch_size > 1:
        yield _with(spec, inputs, batch_size=1)
    if recomputing is not None and not spec.checkpoint_activations:
        yield _with(spec, recomputing, checkpoint_activations=True)
    if spec.workers:
        yield _with(spec, inputs, workers=0, persistent_workers=False)
    if spec.source == "memory":
        yield _with(spec, inputs, source="local")


def largest_batch(spec: RunSpec, inputs: ForecastInputs) -> int | None:
    """Return the largest batch size, up to that of the spec, that fits with a margin."""

    def fits(batch_size: int) -> bool:
        bill = forecast(spec.model_copy(update={"batch_size": batch_size}), inputs)
        return all(
            bill.pool_bytes(pool) <= AIM * limit.bytes for pool, limit in bill.limits.items()
        )

    low, high = 0, spec.batch_size
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None


def _parts(batch_size: int, most: int) -> int:
    """Return the number of equal parts of a batch, each at most `most` samples."""
    parts = -(-batch_size // most)
    while batch_size % parts:
        parts += 1
    return parts


def _with(
    spec: RunSpec, inputs: ForecastInputs, **changed: int | bool | str
) -> tuple[RecordedSpec, Bill]:
    return changed, forecast(spec.model_copy(update=changed), inputs)

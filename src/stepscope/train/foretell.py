"""Say beforehand what a training will take, whether that fits, and what would help if not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stepscope.data import catalogue
from stepscope.errors import OutOfMemoryError
from stepscope.estimate.memory_bill import Bill
from stepscope.estimate.step_ledger import StepMemory, UnlikeSteps
from stepscope.spec import RunSpec
from stepscope.train.forecast import Grounds, forecast
from stepscope.train.foresee import look_ahead
from stepscope.train.reading import reading_of
from stepscope.train.recompute import recomputing
from stepscope.train.remedies import Remedy, remedies
from stepscope.train.worker_trial import worker_bytes
from stepscope.units import format_bytes

# Remedies are looked for where they may be needed; for a run that takes a tenth of the memory the
# search would only cost time.
_REMEDIES_FROM = 0.5

# Of the limit: nearer to it, the guard of `experiments.memory_guard` ends a worker.
WORKERS_STAY_BELOW = 0.95


@dataclass(frozen=True)
class Foretold:
    """A forecast, or the reason why there is none.

    `workers_that_fit` is how many of the `workers` asked for the limit holds beside the training;
    None where it does not hold the training alone, or another pool is too small for the workers.
    """

    bill: Bill | None = None
    step: StepMemory | None = None
    remedies: tuple[Remedy, ...] = ()
    reason: str | None = None
    workers: int = 0
    workers_that_fit: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values: the bill, the phases, what would help."""
        if self.bill is None or self.step is None:
            return {"reason": self.reason}
        return {
            **self.bill.to_json(),
            "peak_phase": self.step.peak_phase,
            "at_peak": dict(self.step.at_peak),
            "phases": {name: vars(phase) for name, phase in self.step.phases.items()},
            "remedies": [remedy.to_json() for remedy in self.remedies],
            "workers": self.workers,
            "workers_that_fit": self.workers_that_fit,
        }


def foretell(spec: RunSpec, model: nn.Module) -> Foretold:
    """Forecast the memory of a training whose network is built, from a few small steps."""
    device = torch.device(spec.device)
    if device.type != "cpu":
        return Foretold(reason=f"memory is forecast for the CPU only, and this is {device}")
    dataset = catalogue.find(spec.data, reading_of(spec))
    try:
        seen = look_ahead(spec, model, dataset, device)
        workers = worker_bytes(spec, dataset) if spec.workers else None
        grounds = Grounds(seen, dataset, workers)
        bill = forecast(spec, grounds)
    except UnlikeSteps:
        return Foretold(reason="steps of two and of three samples do different things")
    except Exception as error:  # somebody's network may fail on a batch that it will never see
        return Foretold(reason=f"a small step failed: {type(error).__name__}: {error}")
    found: list[Remedy] = []
    limit = bill.limits["host"]
    if bill.total_bytes > _REMEDIES_FROM * limit.bytes:
        found = remedies(spec, grounds, _grounds_recomputing(spec, model, grounds))
    return Foretold(
        bill,
        seen.step(spec.batch_size),
        tuple(found),
        workers=spec.workers,
        workers_that_fit=_workers_that_fit(spec, grounds, bill),
    )


def _workers_that_fit(spec: RunSpec, grounds: Grounds, bill: Bill) -> int | None:
    alone = {"workers": 0, "persistent_workers": False}
    without = forecast(spec.model_copy(update=alone), grounds)
    others_fit = all(
        bill.pool_bytes(pool) <= limit.bytes
        for pool, limit in bill.limits.items()
        if pool != "host"
    )
    if not (without.fits and others_fit):
        return None
    each_bytes = (bill.total_bytes - without.total_bytes) / max(1, spec.workers)
    room_bytes = WORKERS_STAY_BELOW * bill.limits["host"].bytes - without.total_bytes
    if each_bytes * spec.workers <= room_bytes:
        return spec.workers
    return max(0, int(room_bytes // each_bytes)) if each_bytes else spec.workers


def _grounds_recomputing(spec: RunSpec, model: nn.Module, grounds: Grounds) -> Grounds | None:
    if spec.checkpoint_activations:
        return None
    with recomputing(model) as blocks:
        if not blocks:
            return None
        seen = look_ahead(spec, model, grounds.dataset, torch.device(spec.device))
    # The process has grown meanwhile by what was tried; its runtime is what it was.
    return replace(grounds, foresight=replace(seen, runtime_bytes=grounds.foresight.runtime_bytes))


def refuse_what_does_not_fit(foretold: Foretold) -> None:
    """Raise where the forecast exceeds the limit, and would without workers.

    Workers that are too many need not end a run: near the limit the guard ends them first.
    """
    bill = foretold.bill
    if bill is None or bill.fits or foretold.workers_that_fit is not None:
        return
    pool = bill.binding
    limit = bill.limits[pool]
    raise OutOfMemoryError(
        f"the run would take {format_bytes(bill.pool_bytes(pool))}, by forecast, and has "
        f"{format_bytes(limit.bytes)} ({limit.of}); it was not started, --force would"
    )

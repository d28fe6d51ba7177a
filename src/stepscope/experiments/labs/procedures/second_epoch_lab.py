"""The workers of the second epoch run out of memory: does the forecast warn, and the run survive?

The training runs without a limit, then with a limit near which the guard ends workers. If the guard
has ended none by the second epoch, the lab kills its first worker, as the kernel would.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass

import psutil

from stepscope.errors import OutOfMemoryError, RequestError, StepscopeError
from stepscope.experiments.workload import training_samples_of
from stepscope.hardware.process import youngest_child
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.types import (
    ForecastUnderLimit,
    MemoryForecast,
    RunMessage,
    SecondEpochAnswer,
    SecondEpochForecast,
    SecondEpochRun,
)
from stepscope.settings import RunSpec
from stepscope.supervisor import preflight, start_run
from stepscope.supervisor.ask_process import forecast
from stepscope.supervisor.child_supervisor import RunListener
from stepscope.supervisor.memory_guard import NEAR_SHARE, Action
from stepscope.units import format_bytes, format_count

# One thread: the workers need the other cores.
DEFAULTS = {"workers": 2, "epochs": 2, "samples": 5000, "batch_size": 128, "threads": 1}

# Two runs of the same spec differ by about a percent, and the guard kills a run above its limit.
_ROOM = 1.02

_LOOK_EVERY_S = 0.002

_EVENTS = ("memory_limit", "memory_guard", "workers_fallback")


def run_lab(spec: RunSpec, listener: RunListener) -> SecondEpochAnswer:
    """Run without a limit and with one, and compare both step by step."""
    evaluation_split = spec.evaluation_split
    if evaluation_split is None or (evaluation_split == "test" and spec.test_at == "end"):
        raise RequestError(
            "lab second-epoch needs an evaluation after the first epoch. Leave out --test-at and "
            "--no-evaluate."
        )
    least = {"workers": max(1, spec.workers), "epochs": max(2, spec.epochs), "max_steps": None}
    spec = spec.model_copy(update={**least, "layers": 0})
    preflight.check(spec)
    with tempfile.TemporaryDirectory() as out:
        listener.output(f"a run with {format_count(spec.workers, 'worker')} and no limit")
        free = spec.model_copy(update={"memory_limit": None, "out": out})
        without = _run(free, listener)
        if without.status != schema.COMPLETED:
            kind = OutOfMemoryError if without.status == schema.OUT_OF_MEMORY else StepscopeError
            raise kind(f"the run without a limit did not complete: {without.info['reason']}")
        known = _forecast(without)
        limit, chosen = choose_limit(
            spec.memory_limit, without.summary["peak_memory_bytes"], known["total_bytes"]
        )
        listener.output("a forecast for a limit that is too small for all workers")
        forewarned = _forewarn(spec, known)
        listener.output(f"the same run with a limit of {format_bytes(limit)}")
        ender = _WorkerEnder(listener, evaluation_split)
        limited = _run(free.model_copy(update={"memory_limit": limit}), ender)
    samples = training_samples_of(spec)
    with_limit, same_steps = _run_figures(limited), _steps(without) == _steps(limited)
    found: SecondEpochAnswer = {
        "lab": "second-epoch",
        "answer": "",
        "holds": nothing_lost(with_limit, samples, same_steps),
        "spec": spec.model_dump(mode="json"),
        "training_samples": samples,
        "limit_bytes": limit,
        "limit_from": chosen,
        "forecast": _forecast(limited),
        "forewarned": forewarned,
        "without_limit": _run_figures(without),
        "with_limit": with_limit,
        "events": [event for event in limited.events if event["event"] in _EVENTS],
        "workers_ended_by_guard": sum(
            event["event"] == "memory_guard" and event["action"] == Action.END_WORKER.value
            for event in limited.events
        ),
        "workers_ended_by_hand": ender.ended,
        "same_steps": same_steps,
        "same_losses": without.steps["loss"] == limited.steps["loss"],
    }
    return {**found, "answer": _answer(found, spec.workers)}


def choose_limit(
    given_bytes: int | None, peak_bytes: int | None, forecast_bytes: int | None
) -> tuple[int, str]:
    """Choose a limit near which the guard acts, above the peak of the run without a limit.

    If the forecast is good enough, the limit is such that it warns too.
    """
    if given_bytes is not None:
        return given_bytes, "from --memory-limit"
    if peak_bytes is None:
        raise StepscopeError("the run's peak memory is unknown on this system: use --memory-limit")
    near = NEAR_SHARE
    low, high = _ROOM * peak_bytes, peak_bytes / near
    if forecast_bytes is not None and forecast_bytes / near > low:
        high = min(high, forecast_bytes / near)
        return round((low + high) / 2), "from the forecast and the peak without a limit"
    return round(low), "from the peak without a limit"


def nothing_lost(limited: SecondEpochRun, training_samples: int, same_steps: bool) -> bool:
    """Return whether the run with the limit completed, with every sample once in each epoch."""
    each_once = set(limited["samples_by_epoch"].values()) == {training_samples}
    return limited["status"] == schema.COMPLETED and each_once and same_steps


@dataclass
class _WorkerEnder:
    """A listener that kills a worker of the second epoch unless one was lost before."""

    listener: RunListener
    evaluation_split: str
    ended: int = 0
    _lost: bool = False

    def message(self, message: RunMessage) -> None:
        self._lost = self._lost or message["type"] == "workers"
        # The workers of this evaluation have ended: those that come now are the second epoch's.
        evaluated = ("1", self.evaluation_split)
        if message["type"] == "epoch" and (message["epoch"], message["split"]) == evaluated:
            threading.Thread(target=self._end_one, daemon=True).start()
        self.listener.message(message)

    def output(self, line: str) -> None:
        self.listener.output(line)

    def stopping(self) -> None:
        self.listener.stopping()

    def _end_one(self) -> None:
        training = youngest_child(psutil.Process())
        while training is not None and training.is_running() and not self._lost:
            time.sleep(_LOOK_EVERY_S)
            worker = youngest_child(training)
            if worker is not None:
                with contextlib.suppress(psutil.Error):  # it has just ended by itself
                    worker.kill()
                    self.ended += 1
                return


def _run(spec: RunSpec, listener: RunListener) -> Run:
    path, _ = start_run.start(spec, listener)
    run = load_run(path)
    _ = run.steps, run.events  # read lazily, and the folder is temporary
    return run


def _run_figures(run: Run) -> SecondEpochRun:
    samples: Counter[int] = Counter()
    for epoch, count in zip(run.steps["epoch"], run.steps["samples"], strict=True):
        samples[epoch] += count
    return {
        "status": run.status,
        "reason": run.info.get("reason"),
        "peak_memory_bytes": run.summary.get("peak_memory_bytes"),
        "wall_s": run.summary.get("wall_s"),
        "steps": len(run.steps),
        "samples_by_epoch": dict(samples),
        "test_accuracy": run.summary.get("test_accuracy"),
        "fallbacks": [
            {name: event[name] for name in ("epoch", "split", "batch", "from", "to", "reason")}
            for event in run.events
            if event["event"] == "workers_fallback"
        ],
    }


def _steps(run: Run) -> list[tuple[int, int, int]]:
    return list(zip(*(run.steps[name] for name in ("epoch", "step", "samples")), strict=True))


def _forecast(run: Run) -> SecondEpochForecast:
    """Return the forecast that the training made before it started."""
    bill: MemoryForecast = run.summary.get("memory_bill") or {}
    total, without = bill.get("total_bytes"), None
    if total is not None:
        without = total - sum(bill["items"][name]["bytes"] for name in ("workers", "prefetch"))
    return {
        "total_bytes": total,
        "without_workers_bytes": without,
        "workers": bill.get("workers"),
        "workers_that_fit": bill.get("workers_that_fit"),
    }


def _forewarn(spec: RunSpec, known: SecondEpochForecast) -> ForecastUnderLimit:
    """Forecast for a limit that fits the training, but not all its workers.

    Nothing runs under that limit: a run that jumps above its limit is killed.
    """
    low, high = known["without_workers_bytes"], known["total_bytes"]
    if low is None or high is None:
        raise StepscopeError("the run without a limit has no memory forecast")
    midway = round((low + high) / 2 / NEAR_SHARE)
    ahead = forecast(spec.model_copy(update={"memory_limit": midway}))
    return {
        "limit_bytes": midway,
        "total_bytes": ahead["total_bytes"],
        "workers": ahead["workers"],
        "workers_that_fit": ahead["workers_that_fit"],
    }


def _answer(found: SecondEpochAnswer, workers: int) -> str:
    fit = found["forecast"]["workers_that_fit"]
    warned = "The forecast did not warn of this limit"
    if fit is not None and fit < workers:
        warned = f"The forecast warned that {fit or 'none'} of {workers} workers would fit"
    by_guard, by_lab = found["workers_ended_by_guard"], found["workers_ended_by_hand"]
    happened = "no worker was lost"
    if by_guard:
        happened = f"the memory guard ended {format_count(by_guard, 'worker')}"
    elif by_lab:
        happened = f"the lab killed {format_count(by_lab, 'worker')} of epoch 2"
    limited = found["with_limit"]
    reason = str(limited["reason"] or limited["status"]).rstrip(".")
    outcome = f"The run did not survive: {reason}"
    if found["holds"]:
        epochs = format_count(len(limited["samples_by_epoch"]), "epoch")
        samples = f"all {found['training_samples']:,} samples once in each of {epochs}"
        outcome = f"The run survived and lost nothing: it trained on {samples}"
    return f"{warned}; {happened}. {outcome}."

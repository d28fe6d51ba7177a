"""The second epoch's workers find no memory: does the run see it coming, and survive it?

The training is run twice. First without a limit, to know what it takes and what its steps are.
Then under a limit near which the guard ends workers. Where the guard has ended none by the second
epoch, the lab does it by hand: SIGKILL for the first worker that the second epoch starts, which is
what the kernel does to it when memory is short. The finding says which of the two it was.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field

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
from stepscope.supervisor.memory_guard import Action, Limits
from stepscope.units import format_bytes, format_count

# One thread: the workers want the other cores.
DEFAULTS = {"workers": 2, "epochs": 2, "samples": 5000, "batch_size": 128, "threads": 1}

# Two runs of the same spec differ by a percent or so in what they take. The guard kills a run that
# is over its limit, so the limit stays this far above what the run took without one.
_ROOM = 1.02

_LOOK_EVERY_S = 0.002

_EVENTS = ("memory_limit", "memory_guard", "workers_fallback")


def run_lab(spec: RunSpec, listener: RunListener) -> SecondEpochAnswer:
    """Run without a limit and with one, and compare the two step by step.

    Raises:
        RequestError: nothing is evaluated between two epochs.
    """
    evaluation_split = spec.evaluation_split
    if evaluation_split is None or (evaluation_split == "test" and spec.test_at == "end"):
        raise RequestError(
            "lab second-epoch wants an evaluation after the first epoch, found none: leave out "
            "--test-at and --no-evaluate."
        )
    least = {"workers": max(1, spec.workers), "epochs": max(2, spec.epochs), "max_steps": None}
    asked = spec.model_copy(update={**least, "layers": 0})
    preflight.check(asked)
    with tempfile.TemporaryDirectory() as out:
        listener.output(f"a run with {format_count(asked.workers, 'worker')} and no limit")
        free = asked.model_copy(update={"memory_limit": None, "out": out})
        without = _run(free, listener)
        if without.status != schema.COMPLETED:
            kind = OutOfMemoryError if without.status == schema.OUT_OF_MEMORY else StepscopeError
            raise kind(f"without a limit the run did not complete: {without.info['reason']}")
        known = _forecast(without)
        limit, chosen = choose_limit(
            asked.memory_limit, without.summary["peak_memory_bytes"], known["total_bytes"]
        )
        listener.output("a forecast under a limit between what it says with workers and without")
        forewarned = _forewarn(asked, known)
        listener.output(f"the same run, held to {format_bytes(limit)}")
        ender = _WorkerEnder(listener, evaluation_split)
        try:
            held = _run(free.model_copy(update={"memory_limit": limit}), ender)
        finally:
            ender.close()
    samples = training_samples_of(asked)
    with_limit, same_steps = _run_figures(held), _steps(without) == _steps(held)
    found: SecondEpochAnswer = {
        "lab": "second-epoch",
        "answer": "",
        "holds": nothing_lost(with_limit, samples, same_steps),
        "spec": asked.model_dump(mode="json"),
        "training_samples": samples,
        "limit_bytes": limit,
        "limit_from": chosen,
        "forecast": _forecast(held),
        "forewarned": forewarned,
        "without_limit": _run_figures(without),
        "with_limit": with_limit,
        "events": [event for event in held.events if event["event"] in _EVENTS],
        "workers_ended_by_guard": sum(
            event["event"] == "memory_guard" and event["action"] == Action.END_WORKER.value
            for event in held.events
        ),
        "workers_ended_by_hand": ender.ended,
        "same_steps": same_steps,
        "same_losses": without.steps["loss"] == held.steps["loss"],
    }
    return {**found, "answer": _answer(found, asked.workers)}


def choose_limit(
    asked: int | None, took: int | None, forecast_bytes: int | None
) -> tuple[int, str]:
    """Choose a limit near which the guard acts, and over which the run does not come.

    `took` is what it took without a limit. Where the forecast is good enough, the limit is such
    that the forecast warns of it too.
    """
    if asked is not None:
        return asked, "asked for"
    if took is None:
        raise StepscopeError("this system does not tell how much the run took: give --memory-limit")
    near = Limits().near_share
    low, high = _ROOM * took, took / near
    if forecast_bytes is not None and forecast_bytes / near > low:
        high = min(high, forecast_bytes / near)
        return round((low + high) / 2), "the forecast, and what the run took without a limit"
    return round(low), "what the run took without a limit"


def nothing_lost(held: SecondEpochRun, training_samples: int, same_steps: bool) -> bool:
    """Say whether the run under the limit completed, with every sample once in each epoch."""
    each_once = set(held["samples_by_epoch"].values()) == {training_samples}
    return held["status"] == schema.COMPLETED and each_once and same_steps


@dataclass
class _WorkerEnder:
    """Pass everything on; end a worker of the second epoch where none was lost before."""

    listener: RunListener
    evaluation_split: str
    ended: int = 0
    _lost: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def message(self, message: RunMessage) -> None:
        self._lost = self._lost or message["type"] == "workers"
        # The workers of this evaluation have ended: those that come now are the second epoch's.
        evaluated = ("1", self.evaluation_split)
        if message["type"] == "epoch" and (message["epoch"], message["split"]) == evaluated:
            self._thread = threading.Thread(target=self._end_one, daemon=True)
            self._thread.start()
        self.listener.message(message)

    def output(self, line: str) -> None:
        self.listener.output(line)

    def stopping(self) -> None:
        self.listener.stopping()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _end_one(self) -> None:
        training = youngest_child(psutil.Process())
        while training is not None and not self._lost and not self._over.wait(_LOOK_EVERY_S):
            worker = youngest_child(training)
            if worker is not None:
                with contextlib.suppress(psutil.Error):  # it has just ended by itself
                    worker.kill()
                    self.ended += 1
                return


def _run(spec: RunSpec, listener: RunListener) -> Run:
    path, _ = start_run.start(spec, listener)
    run = load_run(path)
    _ = run.steps, run.events  # they are read when first asked for, and the folder will be gone
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
            {
                "epoch": event["epoch"],
                "split": event["split"],
                "batch": event["batch"],
                "from": event["from"],
                "to": event["to"],
                "reason": event["reason"],
            }
            for event in run.events
            if event["event"] == "workers_fallback"
        ],
    }


def _steps(run: Run) -> list[tuple[int, int, int]]:
    return list(zip(*(run.steps[name] for name in ("epoch", "step", "samples")), strict=True))


def _forecast(run: Run) -> SecondEpochForecast:
    """Return what was said before the run: by the training itself, under this limit."""
    bill: MemoryForecast = run.summary.get("memory_bill") or {}
    items, total = bill.get("items") or {}, bill.get("total_bytes")
    of_workers = sum(items[name]["bytes"] for name in ("workers", "prefetch") if name in items)
    return {
        "total_bytes": total,
        "without_workers_bytes": None if total is None else total - of_workers,
        "workers": bill.get("workers"),
        "workers_that_fit": bill.get("workers_that_fit"),
    }


def _forewarn(spec: RunSpec, known: SecondEpochForecast) -> ForecastUnderLimit:
    """Forecast under a limit that is said to hold the training, but not all its workers.

    Nothing is run under that limit: a run that leaps over its limit is killed, workers and all.
    """
    low, high = known["without_workers_bytes"], known["total_bytes"]
    if low is None or high is None:
        raise StepscopeError("the run without a limit made no forecast of its memory")
    midway = round((low + high) / 2 / Limits().near_share)
    said = forecast(spec.model_copy(update={"memory_limit": midway}))
    return {
        "limit_bytes": midway,
        "total_bytes": said["total_bytes"],
        "workers": said["workers"],
        "workers_that_fit": said["workers_that_fit"],
    }


def _answer(found: SecondEpochAnswer, workers: int) -> str:
    fit = found["forecast"]["workers_that_fit"]
    if fit is not None and fit < workers:
        asked = format_count(workers, "worker")
        warned = f"The forecast warned that of {asked} {fit or 'none'} would fit;"
    else:
        warned = "The forecast held this limit to be enough;"
    by_guard, by_hand = found["workers_ended_by_guard"], found["workers_ended_by_hand"]
    if by_guard:
        happened = f"the guard ended {format_count(by_guard, 'worker')} near the limit"
    elif by_hand:
        ended = format_count(by_hand, "worker")
        happened = f"the limit did not bind, so {ended} of epoch 2 was ended by hand"
    else:
        happened = "no worker was ended"
    held = found["with_limit"]
    if found["holds"]:
        epochs = len(held["samples_by_epoch"])
        each = f"{found['training_samples']:,} samples once in each of {epochs} epochs"
        return f"{warned} {happened}, and the run completed with nothing lost: {each}."
    reason = str(held["reason"] or held["status"]).rstrip(".")
    return f"{warned} {happened}, and the run did not survive: {reason}."

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
from typing import Any

import psutil

from stepscope.errors import OutOfMemoryError, RequestError, StepscopeError
from stepscope.experiments.labs.lab_runner import LabFinding, Tools
from stepscope.hardware.process import youngest_child
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.settings import RunSpec
from stepscope.supervisor import preflight, start_run
from stepscope.supervisor.ask_process import forecast
from stepscope.supervisor.child_supervisor import RunListener
from stepscope.supervisor.memory_guard import Action, Limits
from stepscope.train.source_settings import data_source_of
from stepscope.units import format_bytes, format_count

# One thread: the workers want the other cores.
DEFAULTS = {"workers": 2, "epochs": 2, "samples": 5000, "batch_size": 128, "threads": 1}

# Two runs of the same spec differ by a percent or so in what they take. The guard kills a run that
# is over its limit, so the limit stays this far above what the run took without one.
_ROOM = 1.02

_LOOK_EVERY_S = 0.002

_EVENTS = ("memory_limit", "memory_guard", "workers_fallback")


def investigate(spec: RunSpec, tools: Tools) -> LabFinding:
    """Run without a limit and with one, and compare the two step by step.

    Raises:
        RequestError: nothing is evaluated between two epochs.
    """
    judged_on = spec.judged_on
    if judged_on is None or (judged_on == "test" and spec.test_at == "end"):
        raise RequestError(
            "lab second-epoch wants an evaluation after the first epoch, found none: leave out "
            "--test-at and --no-evaluate."
        )
    least = {"workers": max(1, spec.workers), "epochs": max(2, spec.epochs), "max_steps": None}
    asked = spec.model_copy(update={**least, "layers": 0})
    preflight.check(asked)
    with tempfile.TemporaryDirectory() as out:
        tools.say(f"a run with {format_count(asked.workers, 'worker')} and no limit")
        free = asked.model_copy(update={"memory_limit": None, "out": out})
        without = _run(free, tools.listener, tools)
        if without.status != schema.COMPLETED:
            kind = OutOfMemoryError if without.status == schema.OUT_OF_MEMORY else StepscopeError
            raise kind(f"without a limit the run did not complete: {without.info['reason']}")
        limit, chosen = choose_limit(
            asked.memory_limit, without.summary["peak_memory_bytes"], _forecast_bytes(without)
        )
        tools.say("a forecast under a limit between what it says with workers and without")
        forewarned = _forewarn(asked, _forecast(without))
        tools.say(f"the same run, held to {format_bytes(limit)}")
        hand = _Hand(tools.listener, judged_on)
        try:
            held = _run(free.model_copy(update={"memory_limit": limit}), hand, tools)
        finally:
            hand.close()
    figures = {
        "spec": asked.model_dump(mode="json"),
        "training_samples": _training_samples(asked),
        "limit_bytes": limit,
        "limit_from": chosen,
        "forecast": _forecast(held),
        "forewarned": forewarned,
        "without_limit": _told(without),
        "with_limit": _told(held),
        "events": [event for event in held.events if event["event"] in _EVENTS],
        "workers_ended_by_guard": _ended_by_guard(held),
        "workers_ended_by_hand": hand.ended,
        "same_steps": _steps(without) == _steps(held),
        "same_losses": without.steps["loss"] == held.steps["loss"],
    }
    survived = nothing_lost(figures)
    return LabFinding(_answer(figures, survived), survived, figures)


def choose_limit(asked: int | None, took: int | None, foretold: int | None) -> tuple[int, str]:
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
    if foretold is not None and foretold / near > low:
        high = min(high, foretold / near)
        return round((low + high) / 2), "the forecast, and what the run took without a limit"
    return round(low), "what the run took without a limit"


def nothing_lost(figures: dict[str, Any]) -> bool:
    """Say whether the run under the limit completed, with every sample once in each epoch."""
    held = figures["with_limit"]
    each_once = set(held["samples_by_epoch"].values()) == {figures["training_samples"]}
    return held["status"] == schema.COMPLETED and each_once and bool(figures["same_steps"])


@dataclass
class _Hand:
    """Pass everything on; end a worker of the second epoch where none was lost before."""

    listener: RunListener
    judged_on: str
    ended: int = 0
    _lost: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def message(self, message: dict[str, Any]) -> None:
        self._lost = self._lost or message["type"] == "workers"
        # The workers of this evaluation have ended: those that come now are the second epoch's.
        evaluated = ("1", self.judged_on)
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


def _run(spec: RunSpec, listener: RunListener, tools: Tools) -> Run:
    path, _ = start_run.start(spec, listener)
    run = load_run(path)
    _ = run.steps, run.events  # they are read when first asked for, and the folder will be gone
    return run


def _told(run: Run) -> dict[str, Any]:
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


def _forecast_bytes(run: Run) -> int | None:
    total = (run.summary.get("memory_bill") or {}).get("total_bytes")
    return None if total is None else int(total)


def _forecast(run: Run) -> dict[str, Any]:
    """Return what was said before the run: by the training itself, under this limit."""
    bill = run.summary.get("memory_bill") or {}
    items = bill.get("items") or {}
    of_workers = sum(items[name]["bytes"] for name in ("workers", "prefetch") if name in items)
    total = bill.get("total_bytes")
    return {
        "total_bytes": total,
        "without_workers_bytes": None if total is None else total - of_workers,
        "workers": bill.get("workers"),
        "workers_that_fit": bill.get("workers_that_fit"),
    }


def _forewarn(spec: RunSpec, known: dict[str, Any]) -> dict[str, Any]:
    """Forecast under a limit that is said to hold the training, but not all its workers.

    Nothing is run under that limit: a run that leaps over its limit is killed, workers and all.
    """
    midway = (known["without_workers_bytes"] + known["total_bytes"]) / 2 / Limits().near_share
    said = forecast(spec.model_copy(update={"memory_limit": round(midway)}))
    told = {name: said[name] for name in ("total_bytes", "workers", "workers_that_fit")}
    return {"limit_bytes": round(midway), **told}


def _ended_by_guard(run: Run) -> int:
    return sum(
        event["event"] == "memory_guard" and event["action"] == Action.END_WORKER.value
        for event in run.events
    )


def _training_samples(spec: RunSpec) -> int:
    from stepscope.data import dataset_registry  # needs numpy, which a reader of runs may not have

    dataset = dataset_registry.find(spec.data, data_source_of(spec))
    return dataset.count("train", spec.samples) - spec.validation


def _answer(figures: dict[str, Any], survived: bool) -> str:
    held = figures["with_limit"]
    asked, fit = figures["spec"]["workers"], figures["forecast"]["workers_that_fit"]
    if fit is not None and fit < asked:
        workers = format_count(asked, "worker")
        warned = f"The forecast warned that of {workers} {fit or 'none'} would fit;"
    else:
        warned = "The forecast held this limit to be enough;"
    by_guard, by_hand = figures["workers_ended_by_guard"], figures["workers_ended_by_hand"]
    if by_guard:
        happened = f"the guard ended {format_count(by_guard, 'worker')} near the limit"
    elif by_hand:
        workers = format_count(by_hand, "worker")
        happened = f"the limit did not bind, so {workers} of epoch 2 was ended by hand"
    else:
        happened = "no worker was ended"
    if survived:
        each = f"{figures['training_samples']:,} samples once in each of "
        each += f"{len(held['samples_by_epoch'])} epochs"
        return f"{warned} {happened}, and the run completed with nothing lost: {each}."
    reason = str(held["reason"] or held["status"]).rstrip(".")
    return f"{warned} {happened}, and the run did not survive: {reason}."

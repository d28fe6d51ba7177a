"""The second epoch's workers find no memory: does the run see it coming, and survive it?

The training is run twice. First without a limit, to know what it takes and what its steps are.
Then under a limit near which the guard ends workers. Where the guard has ended none by the second
epoch, the lab does it by hand: SIGKILL for the first worker that the second epoch starts, which is
what the kernel does to it when memory is short. The finding says which of the two it was.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from stepscope.experiments import preflight, single
from stepscope.experiments.labs import Finding, Tools
from stepscope.experiments.memory_guard import Limits
from stepscope.experiments.supervise import Onlooker, Outcome
from stepscope.hardware.processes import youngest_child
from stepscope.records import schema
from stepscope.records.reader import Run, load_run
from stepscope.spec import RunSpec
from stepscope.units import format_bytes

# One thread: the workers want the other cores.
DEFAULTS = {"workers": 2, "epochs": 2, "samples": 5000, "batch_size": 128, "threads": 1}

# Two runs of the same spec differ by a percent or so in what they take. The guard kills a run that
# is over its limit, so the limit stays this far above what the run took without one.
_ROOM = 1.02

_LOOK_EVERY_S = 0.002
_WORKER_STARTS_WITHIN_S = 30.0


def investigate(spec: RunSpec, tools: Tools) -> Finding:
    """Run without a limit and with one, and compare the two step by step."""
    workers = {"workers": max(1, spec.workers), "epochs": max(2, spec.epochs), "layers": 0}
    asked = spec.model_copy(update=workers)
    preflight.check(asked)
    with tempfile.TemporaryDirectory() as out:
        tools.say(f"a run with {_count(asked.workers)} and no limit")
        free = asked.model_copy(update={"memory_limit": None, "out": out})
        free_run, free_outcome = _run(free, tools.onlooker, tools)
        known = free_run.summary
        limit, chosen = _limit(spec, known)
        tools.say(f"the same run, held to {format_bytes(limit)}")
        hand = _Hand(tools.onlooker)
        held_run, held_outcome = _run(
            free.model_copy(update={"memory_limit": limit}), hand, tools
        )
        hand.close()
        figures = {
            "spec": asked.model_dump(mode="json"),
            "limit_bytes": limit,
            "limit_from": chosen,
            "without_limit": _told(free_run, free_outcome),
            "with_limit": _told(held_run, held_outcome),
            "forecast": _forecast(held_run),
            "workers_ended_by_guard": _ended_by_guard(held_run),
            "workers_ended_by_hand": hand.ended,
            "events": [e for e in held_run.events if e["event"] in _EVENTS],
            "same_steps": _steps(free_run) == _steps(held_run),
            "same_losses": free_run.steps["loss"] == held_run.steps["loss"],
        }
    survived = is_whole(figures)
    return Finding(_answer(figures, survived), survived, figures)


_EVENTS = ("memory_limit", "memory_guard", "workers_fallback")


@dataclass
class _Hand:
    """Pass everything on; end a worker of the second epoch where nobody else has ended one."""

    onlooker: Onlooker
    ended: int = 0
    _lost: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def message(self, message: dict[str, Any]) -> None:
        self._lost = self._lost or message["type"] == "workers"
        first_is_over = message["type"] == "epoch" and (
            (message["epoch"], message["split"]) == ("1", "train")
        )
        if first_is_over and not self._lost and self._thread is None:
            self._thread = threading.Thread(target=self._end_one, daemon=True)
            self._thread.start()
        self.onlooker.message(message)

    def output(self, line: str) -> None:
        self.onlooker.output(line)

    def stopping(self) -> None:
        self.onlooker.stopping()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _end_one(self) -> None:
        """Wait for a worker that was not there when the first epoch ended, and kill it."""
        training = _training()
        if training is None:
            return
        began, until = time.time(), time.monotonic() + _WORKER_STARTS_WITHIN_S
        while time.monotonic() < until and not self._over.is_set():
            worker = youngest_child(training)
            try:
                if worker is not None and worker.create_time() >= began and not self._lost:
                    worker.kill()
                    self.ended += 1
                    return
            except psutil.Error:
                pass  # it has just ended by itself
            time.sleep(_LOOK_EVERY_S)


def _training() -> psutil.Process | None:
    for child in psutil.Process().children():
        try:
            if "stepscope.train.child" in child.cmdline():
                return child
        except psutil.Error:
            continue
    return None


def _run(spec: RunSpec, onlooker: Onlooker, tools: Tools) -> tuple[Run, Outcome]:
    path, outcome = single.start(spec, onlooker, tools.summarize)
    run = load_run(path)
    _ = run.steps, run.epochs, run.events  # the folder will be gone
    return run, outcome


def _limit(spec: RunSpec, known: dict[str, Any]) -> tuple[int, str]:
    """Choose a limit near which the guard acts, and over which the run does not come.

    Where the forecast allows it, one that the forecast too says is nearly reached.
    """
    if spec.memory_limit is not None:
        return spec.memory_limit, "asked for"
    took = known["peak_memory_bytes"]
    forecast = (known["memory_bill"] or {}).get("total_bytes")
    low, high = _ROOM * took, took / Limits().near_share
    if forecast is not None and forecast / Limits().near_share > low:
        high = min(high, forecast / Limits().near_share)
        return round((low + high) / 2), "the forecast, and what the run took without a limit"
    return round(low), "what the run took without a limit: the forecast was too low to choose by"

"""What would another setting bring? Predictions from what one run measured.

`analyze.step_model` predicts the time of a step; here it becomes that of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import cast

from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.step_model import (
    FEWEST_STEPS,
    StepModel,
    batch_costs,
    restart_s,
    step_model,
)
from stepscope.errors import RequestError, nearest
from stepscope.records.run_reader import Run
from stepscope.records.types import WhatIfAnswer

# The share by which predicted step times are off. With a run's sampling error it contains about
# 90 % of the measured times of bench/what_if.py.
MODEL_ERROR = 0.15
_NORMAL_90 = 1.645  # standard deviations that contain 90 %
_BLOCKS = 10
_LEAST_LEFT = 0.02  # of the wall time: no change saves everything
_SYNCHRONISING = "synchronising read"
_OUTSIDE_STEPS = ("preparation", "evaluation", "between epochs", "shutdown")


@dataclass(frozen=True)
class WhatIfPrediction:
    """The expected step and wall time after a change; `interval` is that of the speed-up."""

    change: str
    speedup: float
    interval: tuple[float, float]
    step_s: float
    wall_s: float

    def to_json(self) -> WhatIfAnswer:
        """Return the prediction as the answer of `report --what-if`."""
        return cast("WhatIfAnswer", {**asdict(self), "interval": list(self.interval)})


# --- Intervals


def expected_speedup(
    wall_s: float, saves_s: float, doubt_s: float | None = None
) -> tuple[float, list[float]]:
    """Return the speed-up of the whole run if it takes less time, and its 90 % interval.

    Without `doubt_s`, the saving is as uncertain as a predicted step time, or what is left if that
    is less.
    """
    if doubt_s is None:
        doubt_s = MODEL_ERROR * min(abs(saves_s), abs(wall_s - saves_s))

    def after(saved_s: float) -> float:
        return wall_s / max(wall_s - saved_s, _LEAST_LEFT * wall_s)

    return after(saves_s), [after(saves_s - doubt_s), after(saves_s + doubt_s)]


def sampling_error(view: RunView) -> float:
    """Return half the 90 % interval of the mean step, as a share of it, from means of blocks."""
    times_s = view.step_s
    size = len(times_s) // _BLOCKS
    if not size:
        return 0.0
    means = [fmean(times_s[at * size : (at + 1) * size]) for at in range(_BLOCKS)]
    mean = fmean(means)
    return _NORMAL_90 * stdev(means) / math.sqrt(_BLOCKS) / mean if mean else 0.0


def _doubt(view: RunView) -> float:
    return math.hypot(MODEL_ERROR, sampling_error(view))


def _prediction(
    view: RunView, change: str, saved_s: float, step_s: float, doubt_s: float | None = None
) -> WhatIfPrediction:
    """Return what so many seconds less would bring."""
    wall_s = view.run.summary.get("wall_s")
    if wall_s is None:
        what = f"the status {view.run.status!r}"
        raise _refusal("", "a run that has ended", what, "See: stepscope report RUN")
    speedup, (low, high) = expected_speedup(wall_s, saved_s, doubt_s)
    return WhatIfPrediction(change, speedup, (low, high), step_s, wall_s / speedup)


# --- The loader


def _with_step(
    view: RunView, change: str, step_s: float, besides_s: float = 0.0
) -> WhatIfPrediction:
    """Return what another time for every step would bring, and a saving besides."""
    steps = len(view.run.steps)
    saved_s = (view.mean_step_s - step_s) * steps + besides_s
    return _prediction(view, change, saved_s, step_s, _doubt(view) * step_s * steps)


def _model(view: RunView) -> StepModel:
    found = step_model(view)
    if found is None:
        raise _refusal(
            "",
            f"a timed loader and {FEWEST_STEPS} steps after warm-up",
            f"{len(view.step_s)} steps and {'no' if view.mean('load_s') is None else 'a'} timed "
            "loader",
            "Record more: stepscope trace SCRIPT",
        )
    return found


def _with_workers(view: RunView, value: str) -> WhatIfPrediction:
    workers, model = _whole(value, "workers", 0), _model(view)
    besides_s = restart_s(view) if model.workers and not workers else 0.0
    return _with_step(view, f"num_workers={workers}", model.step_with(workers), besides_s)


def _with_free_loader(view: RunView, value: str) -> WhatIfPrediction:
    """Predict a loader that costs nothing: the most that any change of it could bring."""
    _only(value, "loader", "free")
    return _with_step(view, "a loader that costs nothing", _model(view).step_without_loading())


def _with_persistent_workers(view: RunView, value: str) -> WhatIfPrediction:
    _only(value, "persistent_workers", "true", "1", "yes")
    if not view.workers:
        raise _refusal("persistent_workers", "a run with workers", "none")
    return _prediction(view, "persistent_workers=True", restart_s(view), view.mean_step_s)


# --- What is done at the end of an epoch


def _with_rarer_evaluation(view: RunView, value: str) -> WhatIfPrediction:
    took_s = [row["total_s"] for row in view.evaluations]
    return _rarer(view, value, "evaluate_every", "evaluation", len(took_s), sum(took_s))


def _with_rarer_checkpoints(view: RunView, value: str) -> WhatIfPrediction:
    """Predict fewer checkpoints: those of a built-in run are in its events."""
    took_s = [event["took_s"] for event in view.run.events if event["event"] == "checkpoint"]
    count, total_s = len(took_s), sum(took_s)
    if figures := view.run.summary.get("checkpoints"):
        count, total_s = figures["count"], figures["total_s"]
    return _rarer(view, value, "checkpoint_every", "checkpoint", count, total_s)


def _rarer(
    view: RunView, value: str, name: str, what: str, count: int, total_s: float
) -> WhatIfPrediction:
    """Predict something that takes place in one epoch of n."""
    every = _whole(value, name, 1)
    if not count:
        raise _refusal(name, f"a run with {what}s", "none")
    saved_s = total_s * (1 - max(1, len(view.trained) // every) / count)
    return _prediction(view, f"{what} every {every} epochs", saved_s, view.mean_step_s)


# --- Steps


def _with_batch_size(view: RunView, value: str) -> WhatIfPrediction:
    """Predict another batch size, for the same number of samples."""
    size = _whole(value, "batch_size", 1)
    fixed_s, each_s, current = batch_costs(view)
    step_s, steps = fixed_s + each_s * size, len(view.run.steps)
    after_s = step_s * steps * current / size
    doubt_s = min(1.0, _doubt(view) * abs(math.log(size / current))) * after_s
    saved_s = view.mean_step_s * steps - after_s
    return _prediction(view, f"batch_size={size}", saved_s, step_s, doubt_s)


def _with_pinned_memory(view: RunView, value: str) -> WhatIfPrediction:
    """Predict pinned memory and non-blocking copies, which overlap with computation."""
    _only(value, "pin_memory", "true", "1", "yes")
    if view.on_cpu:
        found = "the CPU, to which nothing is copied"
        raise _refusal("pin_memory", "a run on a device", found)
    return _without_waits(
        view, "pin_memory=True and non_blocking=True", view.all_steps_s("transfer")
    )


def _without_synchronising_reads(view: RunView, value: str) -> WhatIfPrediction:
    """Predict steps without `.item()`, `.cpu()` and the like."""
    _only(value, "sync_reads", "none")
    stacks = view.run.summary.get("stacks")
    if stacks is None:
        reason = (view.run.summary.get("absent") or {}).get("stacks", "no samples of the stack")
        advice = "Record them: stepscope trace SCRIPT"
        raise _refusal("sync_reads", "samples of the script", f"none: {reason}", advice)
    reads_s = sum(
        each["total_s"]
        for each in stacks
        if each["activity"] == _SYNCHRONISING and each["where"] not in _OUTSIDE_STEPS
    )
    return _without_waits(view, "no synchronising reads", reads_s)


def _without_waits(view: RunView, change: str, waits_s: float) -> WhatIfPrediction:
    """Predict less waiting of the host in steps: on a device, only the time that it idles."""
    idle_s = view.idle_device_s("data", "host", "launch")
    saved_s = waits_s if idle_s is None else min(waits_s, idle_s)
    step_s = view.mean_step_s - saved_s / max(1, len(view.run.steps))
    return _prediction(view, change, saved_s, step_s)


# --- Questions


_CHANGES: Mapping[str, Callable[[RunView, str], WhatIfPrediction]] = {
    "workers": _with_workers,
    "num_workers": _with_workers,
    "loader": _with_free_loader,
    "persistent_workers": _with_persistent_workers,
    "evaluate_every": _with_rarer_evaluation,
    "checkpoint_every": _with_rarer_checkpoints,
    "batch_size": _with_batch_size,
    "pin_memory": _with_pinned_memory,
    "sync_reads": _without_synchronising_reads,
}
_TRY = "Try: stepscope report RUN --what-if "


def what_if(run: Run, question: str) -> WhatIfPrediction:
    """Answer a question such as `workers=4` on a run."""
    name, equals, value = question.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not value.strip():
        raise _refusal("", "NAME=VALUE", repr(question), f"{_TRY}workers=4")
    if name not in _CHANGES:
        advice = f"{nearest(name, _CHANGES).strip()} {_TRY}workers=4"
        raise _refusal("", "a known change", repr(name), advice)
    return _CHANGES[name](RunView(run), value.strip())


def _whole(value: str, name: str, least: int) -> int:
    if not value.isdecimal() or int(value) < least:
        wanted = f"a whole number from {least}"
        raise _refusal(name, wanted, repr(value), f"{_TRY}{name}={max(2, least)}")
    return int(value)


def _only(value: str, name: str, *known: str) -> None:
    if value.lower() not in known:
        raise _refusal(name, known[0], repr(value), f"{_TRY}{name}={known[0]}")


def _refusal(name: str, wanted: str, found: str, advice: str = f"{_TRY}workers=2") -> RequestError:
    return RequestError(
        f"what-if: {name + ': ' if name else ''}wanted {wanted}, found {found}. {advice}"
    )

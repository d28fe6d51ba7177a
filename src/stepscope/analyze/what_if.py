"""What would another setting bring? Predictions from what one run measured.

`analyze.step_model` predicts the time of a step; here it becomes that of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

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
from stepscope.records.types import EpochRow, WhatIfAnswer

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
    step_s: float
    wall_s: float
    speedup: float
    interval: tuple[float, float]

    def to_json(self) -> WhatIfAnswer:
        """Return the prediction as the answer of `report --what-if`."""
        return {
            "change": self.change,
            "speedup": self.speedup,
            "interval": list(self.interval),
            "step_s": self.step_s,
            "wall_s": self.wall_s,
        }


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
    means = [sum(times_s[at * size : (at + 1) * size]) / size for at in range(_BLOCKS)]
    mean = sum(means) / _BLOCKS
    variance = sum((each - mean) ** 2 for each in means) / (_BLOCKS - 1)
    return _NORMAL_90 * math.sqrt(variance / _BLOCKS) / mean if mean else 0.0


# --- A run, and its costs


@dataclass(frozen=True)
class WhatIf:
    """A run, ready for questions."""

    run: Run

    @cached_property
    def view(self) -> RunView:
        """The steps that count."""
        return RunView(self.run)

    @cached_property
    def model(self) -> StepModel:
        """The parts of its mean step."""
        found = step_model(self.view)
        if found is None:
            raise _refusal(
                "",
                f"a timed loader and {FEWEST_STEPS} steps after warm-up",
                f"{len(self.view.step_s)} steps and "
                f"{'no' if self.view.mean('load_s') is None else 'a'} timed loader",
                "Record more: stepscope trace SCRIPT",
            )
        return found

    @cached_property
    def wall_s(self) -> float:
        """The time of the whole run."""
        wall_s = self.run.summary.get("wall_s")
        if wall_s is None:
            what = f"the status {self.run.status!r}"
            raise _refusal("", "a run that has ended", what, "See: stepscope report RUN")
        return wall_s

    @property
    def epochs(self) -> int:
        """The number of epochs."""
        return max(1, len(self.run.epoch_rows("train")))

    @property
    def device(self) -> str:
        """The device that trained."""
        return (self.run.info.get("environment") or {}).get("device") or "cpu"

    def with_step(self, change: str, step_s: float, besides_s: float = 0.0) -> WhatIfPrediction:
        """Return what another time for every step would bring, and a saving besides."""
        steps, error = len(self.run.steps), math.hypot(MODEL_ERROR, sampling_error(self.view))
        saved_s = (self.view.mean_step_s - step_s) * steps + besides_s
        return self._prediction(change, saved_s, step_s, error * step_s * steps)

    def saving(self, change: str, saved_s: float, in_steps: bool = False) -> WhatIfPrediction:
        """Return what so many measured seconds less would bring."""
        step_s = self.view.mean_step_s
        if in_steps:
            step_s -= saved_s / max(1, len(self.run.steps))
        return self._prediction(change, saved_s, step_s, None)

    def _prediction(
        self, change: str, saved_s: float, step_s: float, doubt_s: float | None
    ) -> WhatIfPrediction:
        speedup, (low, high) = expected_speedup(self.wall_s, saved_s, doubt_s)
        return WhatIfPrediction(change, step_s, self.wall_s / speedup, speedup, (low, high))


def evaluation_rows(run: Run) -> list[EpochRow]:
    """Return the evaluations."""
    return [row for row in run.epoch_rows() if row["split"] != "train" and row["total_s"]]


def _checkpoint_times(run: Run) -> tuple[int, float]:
    """Return the number of checkpoints and their time: of a built-in run from its events."""
    figures = run.summary.get("checkpoints")
    if figures:
        return figures["count"], figures["total_s"]
    took_s = [event["took_s"] for event in run.events if event["event"] == "checkpoint"]
    return len(took_s), sum(took_s)


# --- Changes


Change = Callable[[WhatIf, str], WhatIfPrediction]


def with_workers(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict another number of loader workers."""
    workers = _whole(value, "workers", 0)
    model = what_if.model
    besides_s = restart_s(what_if.view) if model.workers and not workers else 0.0
    return what_if.with_step(f"num_workers={workers}", model.step_with(workers), besides_s)


def with_free_loader(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict a loader that costs nothing: the most that any change of it could bring."""
    if value != "free":
        raise _refusal("loader", "free", repr(value), _next("loader=free"))
    return what_if.with_step("a loader that costs nothing", what_if.model.step_without_loading())


def with_persistent_workers(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict workers that are kept between epochs."""
    _only_true(value, "persistent_workers")
    if not what_if.view.workers:
        raise _refusal("persistent_workers", "a run with workers", "none", _next("workers=2"))
    return what_if.saving("persistent_workers=True", restart_s(what_if.view))


def with_rarer_evaluation(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict an evaluation in one epoch of n."""
    every = _whole(value, "evaluate_every", 1)
    rows = evaluation_rows(what_if.run)
    if not rows:
        raise _refusal("evaluate_every", "a run with evaluations", "none", _next("workers=2"))
    total_s = sum(row["total_s"] for row in rows)
    kept = _kept(what_if.epochs, every)
    return what_if.saving(f"evaluation every {every} epochs", total_s * (1 - kept / len(rows)))


def with_rarer_checkpoints(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict a checkpoint in one epoch of n."""
    every = _whole(value, "checkpoint_every", 1)
    count, total_s = _checkpoint_times(what_if.run)
    if not count:
        raise _refusal("checkpoint_every", "a run with checkpoints", "none", _next("workers=2"))
    kept = _kept(what_if.epochs, every)
    return what_if.saving(f"a checkpoint every {every} epochs", total_s * (1 - kept / count))


def _kept(epochs: int, every: int) -> int:
    """Return how many of something a run has that does it at the end of every n-th epoch."""
    return max(1, epochs // every)


def with_batch_size(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict another batch size, for the same number of samples."""
    size = _whole(value, "batch_size", 1)
    fixed_s, each_s, current = batch_costs(what_if.view)
    step_s = fixed_s + each_s * size
    before_s = what_if.view.mean_step_s * len(what_if.run.steps)
    after_s = step_s * len(what_if.run.steps) * current / size
    error = math.hypot(MODEL_ERROR, sampling_error(what_if.view)) * abs(math.log(size / current))
    doubt_s = min(1.0, error) * after_s
    return what_if._prediction(f"batch_size={size}", before_s - after_s, step_s, doubt_s)


def with_pinned_memory(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict pinned memory and non-blocking copies, which overlap with computation."""
    _only_true(value, "pin_memory")
    if what_if.device.startswith("cpu"):
        raise _refusal(
            "pin_memory",
            "a run on a device",
            "the CPU, to which nothing is copied",
            _next("workers=2"),
        )
    copies_s = (what_if.view.mean("transfer_s") or 0.0) * len(what_if.run.steps)
    return what_if.saving(
        "pin_memory=True and non_blocking=True", _of_idle(what_if, copies_s), in_steps=True
    )


def without_synchronising_reads(what_if: WhatIf, value: str) -> WhatIfPrediction:
    """Predict steps without `.item()`, `.cpu()` and the like."""
    if value != "none":
        raise _refusal("sync_reads", "none", repr(value), _next("sync_reads=none"))
    summary = what_if.run.summary
    stacks = summary.get("stacks")
    if stacks is None:
        reason = (summary.get("absent") or {}).get("stacks", "no samples of the stack")
        raise _refusal(
            "sync_reads",
            "samples of the script",
            f"none: {reason}",
            "Record them: stepscope trace SCRIPT",
        )
    reads_s = sum(
        each["total_s"]
        for each in stacks
        if each["activity"] == _SYNCHRONISING and each["where"] not in _OUTSIDE_STEPS
    )
    return what_if.saving("no synchronising reads", _of_idle(what_if, reads_s), in_steps=True)


def _of_idle(what_if: WhatIf, waits_s: float) -> float:
    """Return what less waiting of the host saves: on a device, only the time that it idles."""
    idle_s = what_if.view.idle_device_s
    return waits_s if idle_s is None else min(waits_s, idle_s)


CHANGES: Mapping[str, Change] = {
    "workers": with_workers,
    "num_workers": with_workers,
    "loader": with_free_loader,
    "persistent_workers": with_persistent_workers,
    "evaluate_every": with_rarer_evaluation,
    "checkpoint_every": with_rarer_checkpoints,
    "batch_size": with_batch_size,
    "pin_memory": with_pinned_memory,
    "sync_reads": without_synchronising_reads,
}


def what_if(run: Run, question: str) -> WhatIfPrediction:
    """Answer a question such as `workers=4` on a run."""
    name, equals, value = question.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not value.strip():
        raise _refusal("", "NAME=VALUE", repr(question), _next("workers=4"))
    if name not in CHANGES:
        advice = f"{nearest(name, CHANGES).strip()} {_next('workers=4')}"
        raise _refusal("", "a known change", repr(name), advice)
    return CHANGES[name](WhatIf(run), value.strip())


def _whole(value: str, name: str, least: int) -> int:
    if not value.isdecimal() or int(value) < least:
        wanted = f"a whole number from {least}"
        raise _refusal(name, wanted, repr(value), _next(f"{name}={max(2, least)}"))
    return int(value)


def _only_true(value: str, name: str) -> None:
    if value.lower() not in ("true", "1", "yes"):
        raise _refusal(name, "true", repr(value), _next(f"{name}=true"))


def _next(question: str) -> str:
    return f"Try: stepscope report RUN --what-if {question}"


def _refusal(name: str, wanted: str, found: str, advice: str) -> RequestError:
    return RequestError(
        f"what-if: {name + ': ' if name else ''}wanted {wanted}, found {found}. {advice}"
    )

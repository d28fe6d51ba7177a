"""What a training writes down of itself: epochs, the published record format, progress.

Steps are written by the meter; this keeps the sums of loss and hits that belong to an epoch, writes
the rows of `epochs.csv` and `records.csv`, and tells the parent twice a second how it goes and what
it holds of its device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

import torch

from stepscope.data.loaders.batch_notices import Notice
from stepscope.data.loaders.worker_pool import Fallback
from stepscope.errors import AnswerIsNo
from stepscope.meter.clock import now_ns, seconds
from stepscope.meter.device_memory import DevicePool
from stepscope.meter.step_rows import EpochTiming, epoch_values
from stepscope.models.pretrained import Taken
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.settings import RunSpec
from stepscope.train.accuracy import RANKS, HitCounter
from stepscope.train.device import describe_torch
from stepscope.train.epoch_plan import Stage
from stepscope.train.stop_request import Send

RECORD_EVERY = 100
PROGRESS_EVERY_S = 0.5

# Row types of the published record format (docs/run-folder.md).
_TRAIN_EPOCH, _TEST_EPOCH, _TRAIN_BATCH = 0, 1, 2


@dataclass(slots=True)
class Tally:
    """Loss and hits of an epoch so far. `hits[r]` counts samples whose class came at rank r."""

    loss_sum: float = 0.0
    samples: int = 0
    hits: list[int] = field(default_factory=lambda: [0] * RANKS)

    @property
    def loss(self) -> float | None:
        """Mean loss of a sample."""
        return self.loss_sum / self.samples if self.samples else None

    @property
    def accuracy(self) -> float | None:
        """Share of samples whose class came first."""
        return self.hits[0] / self.samples if self.samples else None

    @property
    def top5(self) -> float | None:
        """Share of samples whose class was among the first five."""
        return sum(self.hits) / self.samples if self.samples else None


@dataclass(slots=True)
class Recorder:
    """Write what belongs to epochs, and report progress through `send`."""

    epochs: CsvLog
    records: CsvLog
    send: Send
    stages: Sequence[Stage]
    batches_per_step: int = 1
    batches_per_epoch: int = sys.maxsize
    device: DevicePool | None = None
    processes: int = 1  # that share each batch, at the same pace
    tally: Tally = field(default_factory=Tally)

    _hits: HitCounter | None = None
    _stage: int = 0
    _steps: int = 0
    _done: int = 0
    _told_at: float = 0.0

    def begin(self, stage: int, done: int, tally: Tally, hits: HitCounter) -> None:
        """Turn to a training stage, of which `done` steps are already behind."""
        self._stage, self._done, self.tally, self._hits = stage, done, tally, hits
        self._steps = self.stages[stage].steps

    def testing(self, epoch: int) -> None:
        """Tell the parent that a test begins, which has no steps to tell of."""
        self.send({"type": "testing", "epoch": epoch})

    def step(self, samples: int, loss: float) -> None:
        """Take the loss of one training step; one that is no number ends the run."""
        self._done += 1
        self.tally.samples += samples
        self.tally.loss_sum += loss * samples
        if not math.isfinite(loss):
            stage = self.stages[self._stage]
            raise AnswerIsNo(
                f"the loss became {loss} in epoch {stage.epoch}, step {self._done}. Try a lower "
                "--lr, or --schedule one-cycle, which begins low; the steps so far are recorded."
            )

    def batch(self, step: int, timing: EpochTiming) -> None:
        """Write the record of a training batch: every 100th of its epoch, and the last.

        Where gradients of several batches add up, times are known for whole steps only: the record
        is of the step's last batch, when the 100th is among its batches.
        """
        batches, of = self._batches(step), self._batches(self._steps)
        if batches // RECORD_EVERY > self._batches(step - 1) // RECORD_EVERY or batches == of:
            since_start_s = timing.loader_start_s + timing.steps_s
            self._record(_TRAIN_BATCH, timing, timing.loading_s, since_start_s, batches, of)
        if monotonic() - self._told_at >= PROGRESS_EVERY_S:
            self.tell(step, timing)

    def _batches(self, steps: int) -> int:
        """Count the batches of the first so many steps of an epoch."""
        return min(steps * self.batches_per_step, self.batches_per_epoch)

    def tell(self, step: int, timing: EpochTiming) -> None:
        """Tell the parent how far the run has come."""
        self._told_at = monotonic()
        stage = self.stages[self._stage]
        before = sum(earlier.steps for earlier in self.stages[: self._stage])
        total = sum(each.steps for each in self.stages)
        spent_s = timing.loader_start_s + timing.steps_s
        self.send(
            {
                "type": "progress",
                "split": stage.split,
                "epoch": stage.epoch,
                "epochs": self.stages[-1].epoch,
                "step": step,
                "steps": stage.steps,
                "done": (before + step) / total if total else 1.0,
                "steps_left": total - before - step,
                "step_s": timing.steps_s / timing.steps if timing.steps else None,
                "loss": self.tally.loss,
                "accuracy": self._hits.glance() if self._hits else None,
                "samples_per_s": self.processes * timing.samples / spent_s if spent_s else None,
                "data_share": timing.loading_s / spent_s if spent_s else None,
            }
        )
        if self.device is not None:
            self.send(self.device.now())

    def epoch(self, split: str, timing: EpochTiming, tally: Tally) -> None:
        """Write an epoch's rows, on disk when this returns."""
        values = epoch_values(
            split, timing, loss=tally.loss, accuracy=tally.accuracy, top5=tally.top5
        )
        self.epochs.append(",".join(values.values()))
        kind = _TRAIN_EPOCH if split == "train" else _TEST_EPOCH
        accuracy, top5 = tally.accuracy or 0.0, tally.top5 or 0.0
        self._record(kind, timing, timing.loading_s, timing.total_s, accuracy, top5)
        self.epochs.flush()
        self.records.flush()
        self.send({"type": "epoch", **values})

    def _record(
        self,
        kind: int,
        timing: EpochTiming,
        loading_s: float,
        total_s: float,
        value1: float,
        value2: float,
    ) -> None:
        start = timing.start_unix_s
        numbers = (start, loading_s, total_s, value1, value2)
        self.records.append(f"{kind},{timing.epoch}," + ",".join(f"{n:f}" for n in numbers))


# --- What the training process tells: events into its folder, messages to its parent


@dataclass(frozen=True)
class RunMessages:
    """Tell of a run that began at `origin_ns`."""

    folder: RunFolder
    origin_ns: int
    send: Send

    def elapsed_s(self) -> float:
        """Return how long the run has lived."""
        return seconds(now_ns() - self.origin_ns)

    def event(self, kind: str, **detail: Any) -> None:
        """Write down what happened just now."""
        self.folder.add_event(kind, self.elapsed_s(), **detail)

    def fallback(self, fallback: Fallback) -> None:
        """Tell that a loader goes on with fewer workers."""
        told = asdict(fallback)
        told["from"], told["to"] = told.pop("before"), told.pop("after")
        self.event("workers_fallback", **told)
        self.send({"type": "workers", **told})

    def notice(self, notice: Notice) -> None:
        """Tell what was noticed while a batch was made."""
        self.event(notice.event, path=notice.path, reason=notice.reason)

    def weights(self, taken: Taken, has_vocabulary: bool) -> None:
        """Tell what a network took of the checkpoint that it starts from."""
        told = {**asdict(taken), "has_vocabulary": has_vocabulary}
        self.event("weights", **told)
        self.send({"type": "weights", **told})

    def ready(self, spec: RunSpec, began_ns: int, more: dict[str, Any] | None = None) -> None:
        """Tell that all is built which was begun at `began_ns`; `more` tells of where it runs."""
        self.send(
            {
                "type": "ready",
                "spec": spec.model_dump(mode="json"),
                "environment": {**describe_torch(torch.device(spec.device)), **(more or {})},
                "preparation_s": seconds(now_ns() - began_ns),
            }
        )

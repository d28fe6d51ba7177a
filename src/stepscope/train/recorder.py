"""Record the epochs of a training, and send events and progress to the parent process."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import torch

from stepscope.data.loaders.dataloader import Notice
from stepscope.data.loaders.worker_pool import Fallback
from stepscope.errors import AnswerIsNo
from stepscope.meter.clock import now_ns, seconds
from stepscope.meter.device_memory import DevicePool
from stepscope.meter.step_rows import EpochTiming, epoch_values
from stepscope.models.pretrained import LoadedWeights
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import Environment, EpochMessage, WeightsMessage, WorkersMessage
from stepscope.settings import RunSpec
from stepscope.train.accuracy import RANKS, AccuracyCounter
from stepscope.train.device import describe_torch
from stepscope.train.epoch_plan import Position, Stage
from stepscope.train.stop_request import Send

RECORD_EVERY = 100
PROGRESS_EVERY_S = 0.5

# Row types of the published record format (docs/reference/run-folder.md).
TRAIN_EPOCH, TEST_EPOCH, _TRAIN_BATCH = 0, 1, 2


@dataclass(slots=True)
class Tally:
    """Loss of an epoch so far, and correct predictions: `hits[r]` counts labels at rank r."""

    loss_sum: float = 0.0
    samples: int = 0
    hits: list[int] = field(default_factory=lambda: [0] * RANKS)

    @staticmethod
    def total(tallies: Iterable[Tally]) -> Tally:
        """Return the sum of several tallies."""
        known = list(tallies)
        return Tally(
            sum(each.loss_sum for each in known),
            sum(each.samples for each in known),
            [sum(counts) for counts in zip(*(each.hits for each in known), strict=True)],
        )

    @property
    def loss(self) -> float | None:
        """The mean loss of a sample."""
        return self.loss_sum / self.samples if self.samples else None

    @property
    def accuracy(self) -> float | None:
        """The top-1 accuracy."""
        return self.hits[0] / self.samples if self.samples else None

    @property
    def top5(self) -> float | None:
        """The top-5 accuracy."""
        return sum(self.hits) / self.samples if self.samples else None


@dataclass(slots=True)
class Recorder:
    """Write the rows of epochs, and report progress through `send`."""

    epochs: CsvLog
    records: CsvLog
    send: Send
    stages: Sequence[Stage]
    batches_per_step: int = 1
    batches_per_epoch: int = sys.maxsize
    device: DevicePool | None = None
    processes: int = 1  # which share each batch
    tally: Tally = field(default_factory=Tally)

    _counter: AccuracyCounter | None = None
    _stage: int = 0
    _steps: int = 0
    _done: int = 0
    _reported_at: float = 0.0

    def begin(self, stage: int, done: int, tally: Tally, counter: AccuracyCounter) -> None:
        """Start a training stage of which `done` steps are finished."""
        self._stage, self._done, self.tally, self._counter = stage, done, tally, counter
        self._steps = self.stages[stage].steps

    def evaluating(self, epoch: int) -> None:
        """Report the start of an evaluation, which has no steps to report."""
        self.send({"type": "testing", "epoch": epoch})

    def step(self, samples: int, loss: float) -> None:
        """Add the loss of a training step; raise AnswerIsNo if it is not finite."""
        self._done += 1
        self.tally.samples += samples
        self.tally.loss_sum += loss * samples
        if not math.isfinite(loss):
            stage = self.stages[self._stage]
            raise AnswerIsNo(
                f"the loss became {loss} in epoch {stage.epoch}, step {self._done}. Try a lower "
                "--lr, or --schedule one-cycle, which starts low. The steps so far are recorded."
            )

    def batch(self, step: int, timing: EpochTiming) -> None:
        """Write the record of every 100th batch of an epoch, and the last.

        With gradient accumulation, it describes the last batch of the step with the 100th.
        """
        batches, of = self._batches(step), self._batches(self._steps)
        if batches // RECORD_EVERY > self._batches(step - 1) // RECORD_EVERY or batches == of:
            since_start_s = timing.loader_start_s + timing.steps_s
            self._record(_TRAIN_BATCH, timing, since_start_s, batches, of)
        if monotonic() - self._reported_at >= PROGRESS_EVERY_S:
            self.report_progress(step, timing)

    def _batches(self, steps: int) -> int:
        """Return the number of batches in the first `steps` steps of an epoch."""
        return min(steps * self.batches_per_step, self.batches_per_epoch)

    def report_progress(self, step: int, timing: EpochTiming) -> None:
        """Send the progress of the run to the parent."""
        self._reported_at = monotonic()
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
                "accuracy": self._counter.glance() if self._counter else None,
                "samples_per_s": self.processes * timing.samples / spent_s if spent_s else None,
                "data_share": timing.loading_s / spent_s if spent_s else None,
            }
        )
        if self.device is not None:
            self.send({**self.device.now()})

    def epoch(self, split: str, timing: EpochTiming, tally: Tally) -> None:
        """Write the rows of an epoch and flush them to disk."""
        values = epoch_values(
            split, timing, loss=tally.loss, accuracy=tally.accuracy, top5=tally.top5
        )
        self.epochs.append(",".join(values.values()))
        kind = TRAIN_EPOCH if split == "train" else TEST_EPOCH
        accuracy, top5 = tally.accuracy or 0.0, tally.top5 or 0.0
        self._record(kind, timing, timing.total_s, accuracy, top5)
        self.epochs.flush()
        self.records.flush()
        self.send(cast("EpochMessage", {"type": "epoch", **values}))

    def _record(
        self, kind: int, timing: EpochTiming, total_s: float, value1: float, value2: float
    ) -> None:
        numbers = (timing.start_unix_s, timing.loading_s, total_s, value1, value2)
        self.records.append(f"{kind},{timing.epoch}," + ",".join(f"{n:f}" for n in numbers))


@dataclass(frozen=True)
class RunMessages:
    """Write events to the run folder and send messages to the parent."""

    folder: RunFolder
    origin_ns: int
    send: Send

    def elapsed_s(self) -> float:
        """Return the seconds since the run began."""
        return seconds(now_ns() - self.origin_ns)

    def event(self, kind: str, **detail: Any) -> None:
        """Write an event to the run folder."""
        self.folder.add_event(kind, self.elapsed_s(), **detail)

    def checkpoint(self, position: Position, took_s: float) -> None:
        """Record a checkpoint that is on disk; the training took `took_s` to write it."""
        self.event("checkpoint", **vars(position), took_s=round(took_s, 6))

    def went_back(self, reason: str) -> None:
        """Report that a checkpoint cannot be used, and that an earlier one, or none, will be."""
        self.event("went_back", reason=reason)
        warnings.warn(f"{reason}: steps are trained again from before it", stacklevel=2)

    def fallback(self, fallback: Fallback) -> None:
        """Report that a loader continues with fewer workers."""
        message: WorkersMessage = {
            "type": "workers",
            "split": fallback.split,
            "epoch": fallback.epoch,
            "batch": fallback.batch,
            "reason": fallback.reason,
            "from": fallback.before,
            "to": fallback.after,
        }
        self._record_and_send("workers_fallback", message)

    def _record_and_send(self, event: str, message: WorkersMessage | WeightsMessage) -> None:
        self.event(event, **{name: value for name, value in message.items() if name != "type"})
        self.send(message)

    def notice(self, notice: Notice) -> None:
        """Record a notice about a batch."""
        self.event(notice.event, path=notice.path, reason=notice.reason)

    def weights(self, taken: LoadedWeights, has_vocabulary: bool) -> None:
        """Report which pretrained weights were loaded."""
        message: WeightsMessage = {
            "type": "weights",
            "tensors": taken.tensors,
            "fresh": list(taken.fresh),
            "has_vocabulary": has_vocabulary,
        }
        self._record_and_send("weights", message)

    def ready(self, spec: RunSpec, began_ns: int, group: Environment | None = None) -> None:
        """Report that the training is built; `group` describes its process group."""
        self.send(
            {
                "type": "ready",
                "spec": spec.model_dump(mode="json"),
                "environment": {**describe_torch(torch.device(spec.device)), **(group or {})},
                "preparation_s": seconds(now_ns() - began_ns),
            }
        )

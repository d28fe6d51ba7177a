"""`stepscope.Scope`: measures a user's training loop with five added lines, without hooks."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils.data import DataLoader

from stepscope.api.watch import Session
from stepscope.errors import RequestError, nearest
from stepscope.meter.clock import now_ns, other_clock_ns, own_cpu_ns, seconds
from stepscope.meter.device_memory import DevicePool, device_memory_of, host_memory
from stepscope.meter.device_timeline import queue_of
from stepscope.meter.step_meter import StepMeter, measure_overhead
from stepscope.meter.step_rows import DATA, EpochTiming, LoadTiming, epoch_values
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.types import TraceOutcome
from stepscope.trace import dataloader_hooks
from stepscope.trace.detect.spans import sum_known
from stepscope.trace.sample_count import samples_of

T = TypeVar("T")


class Scope:
    """Time the steps of your own loop and record them as a run.

        scope = stepscope.Scope("my training", device=device)
        for epoch in range(epochs):
            for images, labels in scope.epoch(loader):
                loss = criterion(model(images), labels)
                scope.lap("forward", loss)
                loss.backward()
                scope.lap("backward")
                optimizer.step()
                optimizer.zero_grad()
                scope.lap("optimizer")

    `lap` assigns the time since the previous lap to a phase; the rest is `other`. A step lasts from
    one batch to the next, or over `accumulate` batches. The run is closed when the program ends, by
    `close`, or by leaving a `with` block.
    """

    def __init__(
        self,
        name: str = "scope",
        *,
        out: str | Path = "runs",
        device: torch.device | str = "cpu",
        quiet: bool = False,
    ) -> None:
        self._session = Session(out, name, {"device": str(device)}, quiet)
        self.path = self._session.made.path
        self._device = torch.device(device)
        self._steps = CsvLog(self.path / schema.STEPS)
        self._epochs = CsvLog(self.path / schema.EPOCHS)
        self._meter = StepMeter(self._steps, self._session.origin_ns, queue_of(self._device))
        self._meter.on_loss = self._take_loss
        memory = device_memory_of(self._device, host_memory())
        self._pool = None if memory is None else DevicePool(memory)
        self._epoch = 0
        self._loss: torch.Tensor | None = None
        self._loss_sum, self._loss_samples = 0.0, 0
        self._closed = False
        atexit.register(self._close_at_exit)

    def epoch(self, loader: Iterable[T], *, accumulate: int = 1) -> Iterator[T]:
        """Iterate over a loader's batches; each one, or each `accumulate`, is a step."""
        self._epoch += 1
        timing = EpochTiming(self._epoch, seconds(now_ns() - self._session.origin_ns))
        self._loss_sum, self._loss_samples = 0.0, 0
        opened = other_clock_ns()
        self._meter.open_epoch(timing)
        loads: list[LoadTiming] = []
        batches: Iterator[T] = (
            dataloader_hooks.start_timed(loader, iter, lambda timing, _: loads.append(timing))
            if isinstance(loader, DataLoader)
            else iter(loader)
        )
        self._meter.loader_started()
        samples: int | None = None
        fetched = steps = 0
        try:
            while True:
                cpu_ns, begin_ns = own_cpu_ns(), now_ns()
                batch = next(batches)
                self._meter.lap(DATA)
                if not loads and isinstance(loader, DataLoader):  # loaded in this process
                    took_ns, took_cpu_ns = now_ns() - begin_ns, own_cpu_ns() - cpu_ns
                    loads.append(LoadTiming(-1, begin_ns, took_ns, took_cpu_ns))
                for load in loads:
                    self._meter.loaded(load)
                loads.clear()
                samples = sum_known(samples, samples_of(batch))
                fetched += 1
                yield batch
                if fetched % accumulate == 0:
                    steps += 1
                    self._end_step(steps, samples)
                    samples = None
        except StopIteration:
            pass
        finally:
            # An incomplete step at the end, or a loop that was left early.
            if fetched > steps * accumulate:
                self._end_step(steps + 1, samples)
            del batches
            self._meter.close_epoch()
            timing.total_s = seconds(other_clock_ns() - opened)
            loss = self._loss_sum / self._loss_samples if self._loss_samples else None
            self._epochs.append(",".join(epoch_values("train", timing, loss=loss).values()))
            self._epochs.flush()

    def lap(self, phase: str, loss: torch.Tensor | None = None) -> None:
        """Assign the time since the last lap to a phase; `loss` is that of the step."""
        if phase not in schema.PHASES:
            raise RequestError(f"no phase {phase!r}.{nearest(phase, schema.PHASES)}")
        self._meter.lap(schema.PHASES.index(phase))
        if loss is not None:
            loss = loss.detach()
            self._loss = loss if self._loss is None else self._loss + loss

    def close(self, error: BaseException | None = None) -> None:
        """Write everything and close the run. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        self._meter.flush()
        self._steps.close()
        self._epochs.close()
        outcome: TraceOutcome = {
            "instrument": measure_overhead(self._meter),
            "environment": {
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "device": str(self._device),
            },
        }
        if self._pool is not None:
            outcome["device_memory"] = self._pool.at_end()
        self._session.end(error, outcome)

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def _close_at_exit(self) -> None:
        self.close(getattr(sys, "last_value", None))  # the exception that ended the program, if any

    def _end_step(self, step: int, samples: int | None) -> None:
        self._meter.end_step(step, samples, self._loss)
        self._loss = None

    def _take_loss(self, samples: int, loss: float) -> None:
        self._loss_sum += loss * samples
        self._loss_samples += samples

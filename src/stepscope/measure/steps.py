"""The phases of every training step, on the host's clock and on the device's.

The loop in pseudocode, with every call of the meter in its place:

    meter.open_epoch(epoch)
    batches = iter(loader)                    # workers start
    meter.loader_started()                    # the first step begins
    for each step:
        for each batch of the step:           # several with gradient accumulation
            batch, timing = next(batches);    meter.lap(DATA)
            batch to the device;              meter.lap(TRANSFER)
            outputs and loss;                 meter.lap(FORWARD)
            loss.backward();                  meter.lap(BACKWARD)
        optimizer.step(), zero_grad();        meter.lap(OPTIMIZER)
        meter.end_step(...)                   # the row is written, onlookers are told
    exhaust the loader, its workers end
    meter.close_epoch()                       # the device has caught up, every row is whole

A lap gives the time since the last lap to a phase. A step begins where the one before ended, and
`other` is what no lap claimed, so the phases partition the host's time. The meter's own work
between two steps, and that of whoever is told of them, falls into the next step's `other` and is
counted in `own_ns`. The epoch's total is not the meter's to read: the loop has a clock pair of its
own around all of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from stepscope.measure.clock import cost_ns, now_ns, resolution_s, seconds
from stepscope.measure.device import DeviceQueue, Mark
from stepscope.measure.loading import LoadTiming
from stepscope.records.csvlog import CsvLog

DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
# While the loop waits for data no work is issued, so that part of the device's time is idle.
_DEVICE_COLUMNS = (TRANSFER, FORWARD, BACKWARD, OPTIMIZER, DATA)


@dataclass(slots=True)
class EpochTiming:
    """The epoch so far. What is in it survives a checkpoint in the middle of the epoch."""

    epoch: int
    start_s: float = 0.0
    start_unix_s: float = 0.0
    loader_start_s: float = 0.0
    loader_stop_s: float = 0.0
    data_s: float = 0.0
    steps_s: float = 0.0
    total_s: float = 0.0
    samples: int = 0
    steps: int = 0

    @property
    def loading_s(self) -> float:
        """Time in which the loop had no batch: start of the loader and waiting."""
        return self.loader_start_s + self.data_s

    @property
    def training_s(self) -> float:
        """Time of the steps less their waiting."""
        return self.steps_s - self.data_s


class _Row(NamedTuple):
    """A step's row: numbers while the loop runs, text only when the log is written.

    Formatting a row right after a step, with cold caches, took 50 µs; many in a row take 8 each.
    """

    epoch: int
    step: int
    start_ns: int
    samples: int
    laps: list[int]
    step_ns: int
    load: list[int]
    loss: float
    device: tuple[float, ...] | None = None

    def __str__(self) -> str:
        data, transfer, forward, backward, optimizer, _ = self.laps
        other = self.step_ns - data - transfer - forward - backward - optimizer
        load = load_cpu = load_at = ""
        if self.load:
            worker, start, wall, cpu = self.load
            load, load_cpu = f"{wall * 1e-9:.9f}", f"{cpu * 1e-9:.9f}"
            load_at = f"{start * 1e-9:.9f},{worker}"
        device = ",,,," if self.device is None else ",".join(f"{s:.9f}" for s in self.device)
        # repr reads back to the same bits; a NaN is a value that was seen, and is written as one.
        return (
            f"{self.epoch},{self.step},{self.start_ns * 1e-9:.9f},{self.samples},"
            f"{data * 1e-9:.9f},{load},{transfer * 1e-9:.9f},{forward * 1e-9:.9f},"
            f"{backward * 1e-9:.9f},{optimizer * 1e-9:.9f},{other * 1e-9:.9f},"
            f"{self.step_ns * 1e-9:.9f},{self.loss!r},{load_cpu},{device},{load_at or ','},full"
        )


@dataclass
class _Unfinished:
    """A step whose end the device has not reached yet."""

    row: _Row
    begin: Mark
    laps: list[tuple[int, Mark]]
    loss: Callable[[], Sequence[float]]


@dataclass(slots=True)
class StepMeter:
    """Time the steps of a training loop and write one row for each.

    `on_loss` receives samples and loss of every step as soon as the loss is known, which on an
    asynchronous device is some steps later; `on_step` is told of every step at its end.
    """

    log: CsvLog
    origin_ns: int
    queue: DeviceQueue | None = None
    on_loss: Callable[[int, float], None] = lambda samples, loss: None
    on_step: Callable[[int, EpochTiming], None] = lambda step, timing: None
    own_ns: int = 0
    laps: int = 0
    steps: int = 0
    steps_ns: int = 0

    _epoch: EpochTiming = field(default_factory=lambda: EpochTiming(0))
    _opened_ns: int = 0
    _laps: list[int] = field(default_factory=lambda: [0] * 6)
    _mark_ns: int = 0
    _step_start_ns: int = 0
    _load: list[int] = field(default_factory=list)
    _device_begin: Mark | None = None
    _device_laps: list[tuple[int, Mark]] = field(default_factory=list)
    _unfinished: deque[_Unfinished] = field(default_factory=deque)

    def open_epoch(self, timing: EpochTiming) -> None:
        """Begin an epoch. A resumed one goes on with its earlier timing."""
        self._epoch = timing
        self._opened_ns = now_ns()

    def loader_started(self) -> None:
        """End the loader's start-up: the first step begins here."""
        self._step_start_ns = self._mark_ns = now_ns()
        self._epoch.loader_start_s += seconds(self._mark_ns - self._opened_ns)
        if self.queue is not None:
            self._device_begin = self.queue.mark()

    def lap(self, phase: int) -> None:
        """Give the time since the last lap to a phase."""
        now = now_ns()
        self._laps[phase] += now - self._mark_ns
        self._mark_ns = now
        self.laps += 1
        if self.queue is not None:
            self._device_laps.append((phase, self.queue.mark()))

    def loaded(self, timing: LoadTiming) -> None:
        """Take the loader's own account of a batch of this step; several are added up."""
        if self._load:
            self._load[2] += timing.wall_ns
            self._load[3] += timing.cpu_ns
        else:
            self._load = list(timing)
            self._load[1] -= self.origin_ns

    def end_step(self, step: int, samples: int, loss: torch.Tensor) -> None:
        """End the step: write its row, or set it aside until the device has caught up.

        `loss` is on the training's device; it is handed to `on_loss` as a plain number.
        """
        end = now_ns()
        epoch, laps = self._epoch, self._laps
        step_ns = end - self._step_start_ns
        start_ns = self._step_start_ns - self.origin_ns
        if self.queue is None:
            known = loss.item()
            self.log.append(
                _Row(epoch.epoch, step, start_ns, samples, laps, step_ns, self._load, known)
            )
            self.on_loss(samples, known)
        else:
            row = _Row(epoch.epoch, step, start_ns, samples, laps, step_ns, self._load, 0.0)
            self._set_aside(self.queue, row, loss)
        epoch.data_s += laps[DATA] * 1e-9
        epoch.steps_s += step_ns * 1e-9
        epoch.samples += samples
        epoch.steps += 1
        self.steps += 1
        self.steps_ns += step_ns
        self._laps = [0] * 6
        self._load = []
        self._step_start_ns = end
        self.on_step(step, epoch)
        self._mark_ns = now_ns()
        self.own_ns += self._mark_ns - end

    def close_epoch(self) -> None:
        """End the epoch: the loader is exhausted, its workers are gone, the device has caught up.

        Waits for the device, which is part of the epoch: its last steps are not done before.
        """
        self.settle()
        self._epoch.loader_stop_s += seconds(now_ns() - self._step_start_ns)

    def settle(self) -> None:
        """Wait for the device and write every row. Not for use inside a step."""
        if self._unfinished:
            self._unfinished[-1].laps[-1][1].wait()
            self._write_finished()
        self.log.flush()

    def _set_aside(self, queue: DeviceQueue, row: _Row, loss: torch.Tensor) -> None:
        """Keep the step until its loss has come over, and write those whose loss has."""
        assert self._device_begin is not None, "loader_started comes before the first step"
        fetched = queue.fetch(loss.reshape(1))
        end = queue.mark()
        laps = [*self._device_laps, (OTHER, end)]
        self._unfinished.append(_Unfinished(row, self._device_begin, laps, fetched))
        self._device_begin, self._device_laps = end, []
        self._write_finished()

    def _write_finished(self) -> None:
        """Write the rows of all steps whose end the device has reached."""
        while self._unfinished and self._unfinished[0].laps[-1][1].reached():
            step = self._unfinished.popleft()
            spent = [0.0] * 6
            before = step.begin
            for phase, mark in step.laps:
                # Hits are counted on what forward put out, so that is where their kernels go.
                spent[FORWARD if phase == OTHER else phase] += before.seconds_until(mark)
                before = mark
            loss = step.loss()[0]
            device = tuple(spent[phase] for phase in _DEVICE_COLUMNS)
            self.log.append(step.row._replace(loss=loss, device=device))
            self.on_loss(step.row.samples, loss)


def weigh_instrument(meter: StepMeter) -> dict[str, Any]:
    """State the clock's resolution and what measuring cost each step of this run.

    Counted are the laps (what one costs is measured here, on the run's own device) and the work
    between steps (measured during the run). Telemetry runs in another process.
    """
    scratch = StepMeter(meter.log, meter.origin_ns, meter.queue)
    lap_s = seconds(1) * cost_ns(lambda: scratch.lap(DATA))
    overhead_s = None
    share = None
    if meter.steps:
        overhead_s = (meter.laps * lap_s + seconds(meter.own_ns)) / meter.steps
        share = overhead_s / (seconds(meter.steps_ns) / meter.steps)
    return {
        "clock": "perf_counter (monotonic)",
        "clock_resolution_s": resolution_s(),
        "lap_cost_s": lap_s,
        "overhead_per_step_s": overhead_s,
        "overhead_share": share,
    }

"""The phases of every training step, on the host's clock and on the device's.

    meter.open_epoch(timing)
    batches = iter(loader);                   meter.loader_started()
    for each step:
        for each batch of the step:
            batch = next(batches);            meter.lap(DATA)
            batch to the device;              meter.lap(TRANSFER)
            outputs and loss;                 meter.lap(FORWARD)
            loss.backward();                  meter.lap(BACKWARD)
        optimizer.step(), zero_grad();        meter.lap(OPTIMIZER)
        meter.end_step(...)
    meter.close_epoch()

A lap assigns the time since the last lap to a phase; `other` is the time without a lap. In the
loop, times are only recorded. Twice a second they are flushed, many steps at once, because Python
code that runs right after a step finds cold caches and takes three times as long.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from stepscope.meter.clock import cost_amid_work_ns, now_ns, resolution_s, seconds
from stepscope.meter.device_timeline import DeviceMark, DeviceQueue
from stepscope.meter.step_rows import (
    BACKWARD,
    DATA,
    OTHER,
    SECOND_NS,
    EpochTiming,
    LoadTiming,
    StepRow,
    device_columns,
    load_of_step,
    spent_by_lap,
)
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.types import Instrument

FLUSH_EVERY_NS = SECOND_NS // 2
FIRST_AFTER_STEPS = 2000
BLOCK_STEPS = 20
BLOCK_EVERY_STEPS = (200, 600)


@dataclass(slots=True)
class OffBlocks:
    """Decide when the detail is switched off and on again.

    The cost of the instrument is determined from blocks of steps without detail. They are short and
    begin at random steps, so that they do not coincide with periodic work of the training. Only
    long runs have them: a short one has no steps to spare.
    """

    off: bool = False
    switch_at: int = FIRST_AFTER_STEPS
    # Not the module's functions: a training may depend on their state.
    _random: random.Random = field(default_factory=random.Random)

    def switch(self, steps: int) -> bool:
        """Switch if it is due after `steps` steps; return whether it was."""
        if steps < self.switch_at:
            return False
        self.off = not self.off
        self.switch_at = steps + (
            BLOCK_STEPS if self.off else self._random.randint(*BLOCK_EVERY_STEPS)
        )
        return True


class _RecordedStep(NamedTuple):
    """A recorded step. `laps` are phases with their end times."""

    step: int
    samples: int | None
    begin_ns: int
    laps_begin_ns: int
    laps: list[tuple[int, int]]
    end_ns: int
    loads: list[LoadTiming]
    loss: Callable[[], float | None] | None
    device_begin: DeviceMark | None
    device_laps: list[tuple[int, DeviceMark | None]]
    detail: str
    gradients_at: tuple[int, DeviceMark | None] | None


@dataclass(slots=True)
class StepMeter:
    """Time the steps of a training loop and write one row for each.

    When a step is flushed, `on_loss` receives its samples (0 if unknown) and its loss, and then
    `on_step` is called. `on_lap` is called at the end of a phase, within its time.
    """

    log: CsvLog
    origin_ns: int
    queue: DeviceQueue | None = None
    on_loss: Callable[[int, float], None] = lambda weight, loss: None
    on_step: Callable[[int, EpochTiming], None] = lambda step, timing: None
    on_lap: Callable[[int], None] | None = None
    own_ns: int = 0
    laps: int = 0
    steps: int = 0
    steps_ns: int = 0
    detail: str = schema.FULL
    blocks: OffBlocks = field(default_factory=OffBlocks)
    flush_every_ns: float = FLUSH_EVERY_NS

    _epoch: EpochTiming = field(default_factory=lambda: EpochTiming(0))
    _opened_ns: int = 0
    _step_begin_ns: int = 0
    _laps_begin_ns: int = 0
    _laps: list[tuple[int, int]] = field(default_factory=list)
    _loads: list[LoadTiming] = field(default_factory=list)
    _device_begin: DeviceMark | None = None
    _device_laps: list[tuple[int, DeviceMark | None]] = field(default_factory=list)
    _gradients_at: tuple[int, DeviceMark | None] | None = None
    _recorded: deque[_RecordedStep] = field(default_factory=deque)
    _flushed_ns: int = 0
    _ended: int = 0

    def open_epoch(self, timing: EpochTiming) -> None:
        """Begin an epoch. A resumed one continues its earlier timing."""
        self._epoch = timing
        self._opened_ns = self._flushed_ns = now_ns()

    def loader_started(self) -> None:
        """End the loader's start-up: the first step begins here."""
        self._step_begin_ns = self._laps_begin_ns = now_ns()
        self._epoch.loader_start_s += seconds(self._step_begin_ns - self._opened_ns)
        if self.queue is not None:
            self._device_begin = self.queue.mark()

    def lap(self, phase: int) -> None:
        """Assign the time since the last lap to a phase."""
        if self.on_lap is not None:
            self.on_lap(phase)
        if self.blocks.off:
            return
        self._laps.append((phase, now_ns()))
        if self.queue is not None:
            self._device_laps.append((phase, self.queue.mark()))

    def gradients_ready(self) -> None:
        """Record that a bucket of gradients was sent: what follows may be communication."""
        self._gradients_at = now_ns(), None if self.queue is None else self.queue.mark()

    def loaded(self, timing: LoadTiming) -> None:
        """Add the load timing of a batch of this step."""
        self._loads.append(timing)

    def end_step(self, step: int, samples: int | None, loss: torch.Tensor | None) -> None:
        """End the step; its row is written by the next flush."""
        known: Callable[[], float | None] | None = None if loss is None else loss.item
        device_begin, device_laps = self._device_begin, self._device_laps
        if self.queue is not None:
            known = None if loss is None else self.queue.fetch(loss)
            self._device_begin = self.queue.mark()
            device_laps.append((OTHER, self._device_begin))
            self._device_laps = []
        end = now_ns()
        self._recorded.append(
            _RecordedStep(
                step,
                samples,
                self._step_begin_ns,
                self._laps_begin_ns,
                self._laps,
                end,
                self._loads,
                known,
                device_begin,
                device_laps,
                schema.OFF if self.blocks.off else self.detail,
                self._gradients_at,
            )
        )
        self._laps, self._loads, self._gradients_at = [], [], None
        self._step_begin_ns = self._laps_begin_ns = end
        if self.detail == schema.FULL:
            self._ended += 1
            self.blocks.switch(self._ended)
        if end - self._flushed_ns >= self.flush_every_ns:
            self._flush()
            self._laps_begin_ns = now_ns()

    def close_epoch(self) -> None:
        """End the epoch after the loader's workers have ended. Waits for the device."""
        self.flush()
        self._epoch.loader_stop_s += seconds(now_ns() - self._step_begin_ns)

    def flush(self) -> None:
        """Wait for the device and write every row. Not for use inside a step."""
        marks = (step.device_laps[-1][1] for step in reversed(self._recorded) if step.device_laps)
        last = next((mark for mark in marks if mark is not None), None)
        if last is not None:
            last.wait()
        self._flush()

    def _flush(self) -> None:
        """Sum up and write all steps that the device has completed, and call the callbacks."""
        began = self._flushed_ns = now_ns()
        rows = []
        while self._recorded:
            if not _is_over_on_device(self._recorded[0]):
                break
            step = self._recorded.popleft()
            row = _sum_up(step, self._epoch.epoch, self.origin_ns)
            self.log.append(row)
            self.laps += len(step.laps)
            rows.append(row)
        self.log.flush()  # before the callbacks: a loss that is NaN ends the run
        epoch = self._epoch
        for row in rows:
            epoch.data_s += row.spent[DATA] * 1e-9
            epoch.steps_s += row.step_ns * 1e-9
            epoch.count([row.samples])
            self.steps += 1
            self.steps_ns += row.step_ns
            if row.loss is not None:
                self.on_loss(row.samples or 0, row.loss)
            self.on_step(row.step, epoch)
        self.own_ns += now_ns() - began


def _sum_up(step: _RecordedStep, epoch: int, origin_ns: int) -> StepRow:
    spent, before_ns = [0] * 6, step.laps_begin_ns
    for phase, end_ns in step.laps:
        spent[phase] += end_ns - before_ns
        before_ns = end_ns
    return StepRow(
        epoch,
        step.step,
        step.begin_ns - origin_ns,
        step.samples,
        spent,
        step.end_ns - step.begin_ns,
        load_of_step(step.loads, origin_ns),
        None if step.loss is None else step.loss(),
        _device_columns(step),
        step.detail,
        _communication_s(step),
    )


def _is_over_on_device(step: _RecordedStep) -> bool:
    """Return whether the device has completed the step, as far as there are marks."""
    return all(mark is None or mark.reached() for _, mark in reversed(step.device_laps))


def _device_columns(step: _RecordedStep) -> tuple[float, ...] | None:
    """Return the device's columns; None if a mark is missing."""
    laps = [(phase, mark) for phase, mark in step.device_laps if mark is not None]
    if not laps or step.device_begin is None or len(laps) < len(step.device_laps):
        return None
    return device_columns(spent_by_lap(step.device_begin, laps)[0])


def _communication_s(step: _RecordedStep) -> float | None:
    """Return the time from a step's last gradients to the end of its backward pass."""
    if step.gradients_at is None:
        return None
    ready_ns, mark = step.gradients_at
    if mark is not None:
        ends = [end for phase, end in step.device_laps if phase == BACKWARD]
        if not ends or ends[-1] is None:
            return None
        took_s = mark.seconds_until(ends[-1])
        return None if math.isnan(took_s) else took_s
    ends_ns = [end_ns for phase, end_ns in step.laps if phase == BACKWARD]
    return seconds(ends_ns[-1] - ready_ns) if ends_ns else None


def measure_overhead(meter: StepMeter) -> Instrument:
    """Return the clock's resolution and the cost of laps, recording and flushes per step."""
    # Never flushed: its steps are not part of the run.
    scratch = StepMeter(meter.log, meter.origin_ns, meter.queue, flush_every_ns=math.inf)
    lap_s = seconds(1) * cost_amid_work_ns(lambda: scratch.lap(DATA))
    scratch.open_epoch(EpochTiming(0))
    no_loss = torch.zeros(())
    record_s = seconds(1) * cost_amid_work_ns(lambda: scratch.end_step(0, 0, no_loss))
    overhead_s = None
    share = None
    if meter.steps:
        overhead_s = record_s + (meter.laps * lap_s + seconds(meter.own_ns)) / meter.steps
        share = overhead_s / (seconds(meter.steps_ns) / meter.steps)
    return {
        "clock": "perf_counter (monotonic)",
        "clock_resolution_s": resolution_s(),
        "lap_cost_s": lap_s,
        "overhead_per_step_s": overhead_s,
        "overhead_share": share,
    }

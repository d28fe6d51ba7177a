"""Rows of steps and epochs, and their lines in `steps.csv` and `epochs.csv`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stepscope.records import schema
from stepscope.records.csv_log import number

if TYPE_CHECKING:
    from stepscope.meter.device_timeline import DeviceMark

SECOND_NS = 1_000_000_000
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
# While the loop waits for data no work is issued: this part of the device's time is idle.
_DEVICE_COLUMNS = (TRANSFER, FORWARD, BACKWARD, OPTIMIZER, DATA, OTHER)

# The fields of a `LoadTiming`, as a plain tuple.
Load = tuple[int, int, int, int | None]


class LoadTiming(NamedTuple):
    """The timing of one batch; worker -1 is the training process."""

    worker: int
    start_ns: int
    wall_ns: int
    cpu_ns: int | None


def load_of_step(loads: Sequence[Load], origin_ns: int) -> Load | None:
    """Return the first batch's worker and start, and the wall and CPU time of all batches."""
    if not loads:
        return None
    worker, start_ns, wall_ns, cpu_ns = loads[0]
    for _, _, later_wall_ns, later_cpu_ns in loads[1:]:
        wall_ns += later_wall_ns
        cpu_ns = None if cpu_ns is None or later_cpu_ns is None else cpu_ns + later_cpu_ns
    return worker, start_ns - origin_ns, wall_ns, cpu_ns


@dataclass(slots=True)
class EpochTiming:
    """The figures of an epoch so far. They survive a checkpoint within the epoch."""

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
    uncounted_steps: int = 0  # steps with unknown samples
    evaluations_s: float = 0.0  # evaluations inside it, which `total_s` leaves out

    def count(self, samples: Sequence[int | None]) -> None:
        """Count steps, and their samples where known."""
        known = [each for each in samples if each is not None]
        self.samples += sum(known)
        self.steps += len(samples)
        self.uncounted_steps += len(samples) - len(known)

    @property
    def samples_known(self) -> int | None:
        """The samples of all steps; None if those of some are unknown."""
        return None if self.uncounted_steps else self.samples

    @property
    def samples_per_s(self) -> float | None:
        """The rate, assuming as many samples in uncounted steps as in the others."""
        if not self.total_s or not self.samples:
            return None
        uncounted = self.uncounted_steps
        times = self.steps / (self.steps - uncounted) if uncounted else 1
        return self.samples * times / self.total_s

    @property
    def loading_s(self) -> float:
        """The time without a batch: start of the loader and waiting."""
        return self.loader_start_s + self.data_s

    @property
    def training_s(self) -> float:
        """The time of the steps less their waiting."""
        return self.steps_s - self.data_s


class StepRow(NamedTuple):
    """A step's row, in nanoseconds; its `str` is the line of the log."""

    epoch: int
    step: int
    start_ns: int
    samples: int | None
    spent: list[int]
    step_ns: int
    load: Load | None
    loss: float | None
    device: tuple[float, ...] | None = None
    detail: str = schema.FULL
    communication_s: float | None = None

    def __str__(self) -> str:
        data, transfer, forward, backward, optimizer, _ = self.spent
        other = self.step_ns - data - transfer - forward - backward - optimizer
        # repr restores the same bits; a NaN is a value and is written as one.
        loss = "" if self.loss is None else repr(self.loss)
        samples = "" if self.samples is None else self.samples
        load = load_cpu = load_at = ""
        if self.load is not None:
            worker, start, wall, cpu = self.load
            load = f"{wall * 1e-9:.9f}"
            load_cpu = "" if cpu is None else f"{cpu * 1e-9:.9f}"
            load_at = f"{start * 1e-9:.9f},{worker}"
        if self.detail != schema.FULL:
            # The phases of such a step were not measured, or differ from an ordinary step's.
            return (
                f"{self.epoch},{self.step},{self.start_ns * 1e-9:.9f},{samples},,{load},,,,,,"
                f"{self.step_ns * 1e-9:.9f},{loss},{load_cpu},,,,,,{load_at or ','},"
                f"{self.detail},,"
            )
        *device, other_device = (
            [""] * 6 if self.device is None else [f"{s:.9f}" for s in self.device]
        )
        communication = "" if self.communication_s is None else f"{self.communication_s:.9f}"
        return (
            f"{self.epoch},{self.step},{self.start_ns * 1e-9:.9f},{samples},"
            f"{data * 1e-9:.9f},{load},{transfer * 1e-9:.9f},{forward * 1e-9:.9f},"
            f"{backward * 1e-9:.9f},{optimizer * 1e-9:.9f},{other * 1e-9:.9f},"
            f"{self.step_ns * 1e-9:.9f},{loss},{load_cpu},{','.join(device)},{load_at or ','},"
            f"full,{communication},{other_device}"
        )


def spent_by_lap(
    begin: DeviceMark | None, laps: Iterable[tuple[int, DeviceMark]]
) -> tuple[list[tuple[int, float]], DeviceMark | None]:
    """Return each lap's phase and device time, and the mark that was reached last.

    All marks were reached. A mark on another stream may be reached before those placed earlier: a
    copy that is hidden behind computation takes no time of its own.
    """
    spent: list[tuple[int, float]] = []
    for phase, mark in laps:
        assert begin is not None, "a mark comes before the first lap"
        took_s = begin.seconds_until(mark)
        spent.append((phase, took_s if not took_s < 0 else 0.0))
        if not took_s < 0:
            begin = mark
    return spent, begin


def device_columns(spent_s: Iterable[tuple[int, float]]) -> tuple[float, ...] | None:
    """Return the device's seconds by phase, in the order of the columns; None if one is unknown."""
    totals = [0.0] * 6
    for phase, took_s in spent_s:
        totals[phase] += took_s
    if math.isnan(sum(totals)):
        return None
    return tuple(totals[phase] for phase in _DEVICE_COLUMNS)


def epoch_values(
    split: str,
    timing: EpochTiming,
    *,
    loss: float | None,
    accuracy: float | None = None,
    top5: float | None = None,
) -> dict[str, str]:
    """Format an epoch's figures by column; unknown ones are empty."""
    others = {"loss": loss, "accuracy": accuracy, "top5": top5, "samples": timing.samples_known}
    # The other columns have the names of the figures of the timing.
    return {
        column: split
        if column == "split"
        else number(others[column] if column in others else getattr(timing, column))
        for column in schema.EPOCH_COLUMNS
    }

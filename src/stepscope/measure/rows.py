"""What the record has of a step and of an epoch, whoever measures it: the rows, and their lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stepscope.records import schema

SECOND_NS = 1_000_000_000
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
# While the loop waits for data no work is issued, so that part of the device's time is idle.
_DEVICE_COLUMNS = (TRANSFER, FORWARD, BACKWARD, OPTIMIZER, DATA)

# The fields of a `LoadTiming` without their names.
Load = tuple[int, int, int, int]


class LoadTiming(NamedTuple):
    """The making of one batch: on which worker (-1: the training process), when, how long."""

    worker: int
    start_ns: int
    wall_ns: int
    cpu_ns: int


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


class StepRow(NamedTuple):
    """A step's row, in nanoseconds; its `str` is the line of the log."""

    epoch: int
    step: int
    start_ns: int
    samples: int
    spent: list[int]
    step_ns: int
    load: list[int]
    loss: float | None
    device: tuple[float, ...] | None = None
    detail: str = schema.FULL
    communication_s: float | None = None

    def __str__(self) -> str:
        data, transfer, forward, backward, optimizer, _ = self.spent
        other = self.step_ns - data - transfer - forward - backward - optimizer
        # repr reads back to the same bits; a NaN is a value that was seen, and is written as one.
        loss = "" if self.loss is None else repr(self.loss)
        load = load_cpu = load_at = ""
        if self.load:
            worker, start, wall, cpu = self.load
            load, load_cpu = f"{wall * 1e-9:.9f}", f"{cpu * 1e-9:.9f}"
            load_at = f"{start * 1e-9:.9f},{worker}"
        if self.detail != schema.FULL:
            # Phases of such a step were not measured, or are not those of an ordinary step.
            return (
                f"{self.epoch},{self.step},{self.start_ns * 1e-9:.9f},{self.samples},,{load},,,,,,"
                f"{self.step_ns * 1e-9:.9f},{loss},{load_cpu},,,,,,{load_at or ','},"
                f"{self.detail},"
            )
        device = ",,,," if self.device is None else ",".join(f"{s:.9f}" for s in self.device)
        exposed = "" if self.communication_s is None else f"{self.communication_s:.9f}"
        return (
            f"{self.epoch},{self.step},{self.start_ns * 1e-9:.9f},{self.samples},"
            f"{data * 1e-9:.9f},{load},{transfer * 1e-9:.9f},{forward * 1e-9:.9f},"
            f"{backward * 1e-9:.9f},{optimizer * 1e-9:.9f},{other * 1e-9:.9f},"
            f"{self.step_ns * 1e-9:.9f},{loss},{load_cpu},{device},{load_at or ','},full,"
            f"{exposed}"
        )


def device_columns(spent_s: Iterable[tuple[int, float]]) -> tuple[float, ...]:
    """Sum up the device's seconds by phase, in the order of the columns."""
    totals = [0.0] * 6
    for phase, took_s in spent_s:
        # What comes between phases, such as counting hits, works on what forward put out.
        totals[FORWARD if phase == OTHER else phase] += took_s
    return tuple(totals[phase] for phase in _DEVICE_COLUMNS)

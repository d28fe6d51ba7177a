"""A run as scalars for TensorBoard: time and loss by step, accuracy by epoch, memory by time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from stepscope.records import schema
from stepscope.records.reader import Run
from stepscope.records.table import Table
from stepscope.report.export_event_file import first_record, scalars_record, tag_of
from stepscope.report.export_nothing import nothing_recorded

FOLDER = "tensorboard"
FILE = "events.out.tfevents.stepscope"  # TensorBoard looks for `tfevents` in a name

_OF_STEPS = ("step_s", *(f"{phase}_s" for phase in schema.PHASES), "loss")
_OF_EPOCHS = ("loss", "accuracy", "top5", "samples_per_s")
_OF_TELEMETRY = (
    *("pss_bytes", "rss_bytes", "workers_private_bytes", "swap_bytes", "available_bytes"),
    *("device_memory_bytes", "device_percent", "power_w", "temperature_c"),
)

# When, at which step, and what is known then.
Event = tuple[float, int, list[tuple[bytes, float]]]


def encode(run: Run) -> Iterator[tuple[bytes, int]]:
    """Give the records of an event file, each with the number of events in it.

    The step of a training step is its row, counted from 1 through all epochs; of an epoch, its
    number; of a sample of the telemetry, milliseconds since the run began.

    Raises:
        AnswerIsNo: no step was recorded.
    """
    if not len(run.steps):
        raise nothing_recorded(run, "training step")
    began_s = float(run.info.get("started_unix_s") or 0)
    yield first_record(began_s), 0
    for time_s, step, scalars in _events(run):
        if scalars:
            yield scalars_record(began_s + time_s, step, scalars), 1


def _events(run: Run) -> Iterator[Event]:
    steps, telemetry = run.steps, run.telemetry
    numbers = range(1, len(steps) + 1)
    yield from _rows(steps, steps["start_s"], numbers, "steps/", _OF_STEPS)
    for split in ("train", "test", "validation"):
        epochs = _of_split(run.epochs, split)
        yield from _rows(epochs, epochs["start_s"], epochs["epoch"], f"epochs/{split}_", _OF_EPOCHS)
    times_s = telemetry["time_s"]
    yield from _rows(telemetry, times_s, map(_in_ms, times_s), "telemetry/", _OF_TELEMETRY)


def _rows(
    table: Table,
    times_s: Sequence[float | None],
    steps: Iterable[int | None],
    group: str,
    columns: Sequence[str],
) -> Iterator[Event]:
    """Give the rows of a table whose time and step are known."""
    tags = [tag_of(f"{group}{column}") for column in columns]
    rows = zip(*(table[column] for column in columns), strict=True)
    for time_s, step, values in zip(times_s, steps, rows, strict=True):
        if time_s is not None and step is not None:
            known = [each for each in zip(tags, values, strict=True) if each[1] is not None]
            yield time_s, step, known


def _of_split(epochs: Table, split: str) -> Table:
    chosen = [row for row, found in enumerate(epochs["split"]) if found == split]
    return Table({name: [values[row] for row in chosen] for name, values in epochs.columns.items()})


def _in_ms(time_s: float | None) -> int | None:
    return round(time_s * 1000) if time_s is not None and math.isfinite(time_s) else None

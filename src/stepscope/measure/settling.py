"""Rows of what hooks have noted, and what it cost to watch.

It runs in the process that trains. A parent that settles instead was tried: torch's threads keep
every core busy, so the parent took the training's own core as soon as notes reached it.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.measure import events as e
from stepscope.measure.clock import seconds
from stepscope.measure.epoch_row import epoch_values
from stepscope.measure.exposed import Exposed
from stepscope.measure.plain_rows import PlainRows
from stepscope.measure.recognize import Recognizer
from stepscope.measure.rows import EpochTiming, StepRow
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog


@dataclass
class Settler:
    """Take notes in their order, and write the steps and epochs that are found in them."""

    folder: Path
    origin_ns: int
    exposed: Exposed = field(default_factory=Exposed)
    noted: int = 0
    steps_ns: int = 0

    def __post_init__(self) -> None:
        self._logs = ExitStack()
        self._steps, self._epochs = (
            self._logs.enter_context(CsvLog(self.folder / name))
            for name in (schema.STEPS, schema.EPOCHS)
        )
        self._recognizer = Recognizer(self, self.origin_ns, self.exposed)

    @property
    def steps(self) -> int:
        """How many steps were written."""
        return self._recognizer.steps

    @property
    def steps_seen(self) -> int:
        """How many steps there were, the one included that nothing has ended yet."""
        return self._recognizer.steps_seen

    def take(self, notes: list[Any]) -> None:
        """Find out what the notes mean and write it."""
        # Nearly everything that is made here is gone soon after: left alone, Python would look
        # through it, and through the script's objects too, several times. That is half of the cost.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.noted += len(notes) // len(e.FIELDS)
            self._recognizer.take(notes)
            self._steps.flush()
            self._epochs.flush()
        finally:
            if collects:
                gc.enable()

    def finish(self) -> None:
        """End what is under way, and write it: there is nothing more to come."""
        self._recognizer.finish()
        self._logs.close()

    def weigh(self, event_s: float, own_s: float) -> dict[str, Any]:
        """State what watching cost each step: so much an event, and so much beside them in all."""
        overhead_s = share = None
        if self.steps and self.steps_ns:  # none are written where settling had trouble
            overhead_s = (self.noted * event_s + own_s) / self.steps
            share = overhead_s / (seconds(self.steps_ns) / self.steps)
        return {
            "event_cost_s": event_s,
            "events_per_step": self.noted / self.steps if self.steps else None,
            "overhead_per_step_s": overhead_s,
            "overhead_share": share,
        }

    # what the recognizer calls

    def step(self, row: StepRow) -> None:
        """Take a finished step."""
        self.steps_ns += row.step_ns
        self._steps.append(row)

    def plain_steps(self, rows: PlainRows) -> None:
        """Take many finished steps at once."""
        self.steps_ns += sum(rows.steps_ns)
        self._steps.append(rows)

    def epoch(self, split: str, timing: EpochTiming, loss: float | None) -> None:
        """Take a finished epoch or evaluation."""
        self._epochs.append(",".join(epoch_values(split, timing, loss=loss).values()))

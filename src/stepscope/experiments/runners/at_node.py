"""On a node: whether settings could run there, and a trial made there, its record as bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stepscope.errors import MachineError, StepscopeError
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.runners.parcel import Parcel, pack
from stepscope.experiments.subjects import Attempt, Subject
from stepscope.experiments.supervise import Outcome
from stepscope.experiments.trial import Nobody
from stepscope.experiments.trial_folder import temporary_folder
from stepscope.records import schema

_SET_BY_RAY = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Refusal:
    """An error of a node as plain values: not every exception survives the journey."""

    message: str
    exit_code: int


@dataclass(frozen=True)
class Delivery:
    """How a trial ended, and its record; there is none where it could not even begin."""

    outcome: Outcome
    record: Parcel | None

    @property
    def was_cut_short(self) -> bool:
        """Whether the node was told to stop meanwhile: a sweep is stopped where it was begun."""
        return self.outcome.asked_to_stop and self.outcome.status != schema.COMPLETED


@dataclass(frozen=True)
class Task:
    """A trial as a node needs it; `name` is its folder's, `directory` where the sweep was begun."""

    name: str
    subject: Subject
    values: Mapping[str, Any]
    directory: str
    summarize: Summarize
    time_limit_s: float | None


def check(
    subject: Subject, settings: Sequence[Mapping[str, Any]], directory: str
) -> Refusal | None:
    """Look whether settings could only fail on this node."""
    _enter(directory)
    try:
        for values in settings:
            subject.check(values)
    except StepscopeError as error:
        return Refusal(str(error), error.exit_code)
    return None


def make(task: Task) -> Delivery | Refusal:
    """Make a trial in a temporary folder, and return it with its record.

    A node that cannot even write, as its disk is full, refuses: another one may do better.
    """
    _enter(task.directory)
    _forget_threads()
    try:
        with temporary_folder(Path(tempfile.gettempdir())) as folder:
            path = Path(folder) / task.name
            attempt = Attempt(path, Nobody(), task.summarize, task.time_limit_s)
            outcome = task.subject.run(task.values, attempt)
            return Delivery(outcome, pack(path) if path.is_dir() else None)
    except StepscopeError as error:
        return Refusal(str(error), error.exit_code)
    except OSError as error:
        return Refusal(f"cannot keep a trial's record: {error}", MachineError.exit_code)


def _enter(directory: str) -> None:
    """Work where the sweep was begun, where this node has such a folder."""
    if Path(directory).is_dir():
        os.chdir(directory)


def _forget_threads() -> None:
    """Leave the number of threads to torch, as anywhere else.

    Ray sets it within the process; what a person set for the node was there from its beginning.
    """
    if _SET_BY_RAY not in psutil.Process().environ():
        os.environ.pop(_SET_BY_RAY, None)

"""Experiments by name: each answers one question for this machine, with what it measured itself.

Most labs are a sheet, `NAME.toml`, and a page of code, `NAME.py`, whose `investigate` runs the
settings of the sheet and draws the finding from them; `conduct` does one of those. The others look
at one training from inside and bring `DEFAULTS`, the settings that they begin with. How a finding
looks is in `report.terminal.lab_tables`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from stepscope.errors import RequestError, nearest
from stepscope.experiments.labs.lab_folder import LabFolder, lab_folder, lab_folder_again
from stepscope.experiments.labs.lab_plan import Ask, Plan, make_plan
from stepscope.experiments.labs.lab_sheet import Sheet, read_sheet, sheet_names
from stepscope.experiments.sweep_run import SweepListener, working_in
from stepscope.records import schema
from stepscope.records.run_folder import read_record
from stepscope.settings import RunSpec
from stepscope.stats import median


@dataclass(frozen=True)
class Tools:
    """What a lab uses to show its progress."""

    listener: SweepListener
    say: Callable[[str], None]


@dataclass(frozen=True)
class LabFinding:
    """The answer in a sentence, whether it is a good one, and all figures as plain values."""

    answer: str
    holds: bool = True
    figures: dict[str, Any] = field(default_factory=dict)


def found(
    answer: str,
    holds: bool,
    rows: Sequence[Mapping[str, Any]],
    missing: Sequence[Mapping[str, str]],
    curves: Sequence[Mapping[str, Any]] = (),
) -> LabFinding:
    """Make the finding of a sheet: its table, what could not be done, its course by epoch."""
    figures = {"missing": list(missing), "rows": list(rows), "curves": list(curves)}
    return LabFinding(answer, holds, figures)


class Investigation(Protocol):
    """What the module of a lab without a sheet offers."""

    DEFAULTS: Mapping[str, Any]

    def investigate(self, spec: RunSpec, tools: Tools) -> LabFinding:
        """Make the runs and draw the finding from them."""


class SheetInvestigation(Protocol):
    """What the module of a lab with a sheet offers."""

    def investigate(self, plan: Plan, folder: Path, tools: Tools) -> LabFinding:
        """Make the runs in a folder and draw the finding from them."""


OF_THEIR_OWN = {
    "memory": "why a training takes the memory that it takes, when it goes, what saves some",
    "second-epoch": "workers that do not fit: forecast, ended under a limit, and nothing lost",
}


def labs() -> dict[str, str]:
    """List every lab, and what it is about."""
    return {name: read_sheet(name).about for name in sheet_names()} | OF_THEIR_OWN


def find(name: str) -> Investigation | Sheet:
    """Return the sheet of a name, or the module of a lab that has none.

    Raises:
        RequestError: there is neither.
    """
    if name in OF_THEIR_OWN:
        return cast(Investigation, _module(name))
    if name not in sheet_names():
        raise RequestError(f"unknown lab {name!r}.{nearest(name, labs())}")
    return read_sheet(name)


def conduct(sheet: Sheet, ask: Ask, tools: Tools) -> LabFinding:
    """Run the lab of a sheet in a new folder; its path is among the figures."""
    plan = make_plan(sheet, ask)
    about = {**plan.told(), "ask": ask.to_json(), "directory": str(Path.cwd())}
    module = _module_of(sheet)
    with lab_folder(Path(plan.spec.out), sheet.name, about) as made:
        return _investigate(module, plan, made, tools)


def resume(path: Path, tools: Tools) -> tuple[Sheet, LabFinding]:
    """Do what is missing of a lab that was stopped, in its folder; what was run is not run again.

    Raises:
        RequestError: the folder is of no lab that can go on.
    """
    folder, info = read_record(path, LabFolder.INFO, "lab")
    sheet = find(str(info.get("lab")))
    ask = Ask.from_json(info.get("ask"))
    if not isinstance(sheet, Sheet) or ask is None:
        raise RequestError(f"{folder} does not say what was asked for. Begin anew: stepscope lab.")
    module = _module_of(sheet)
    with working_in(info.get("directory")), lab_folder_again(folder.resolve()) as made:
        return sheet, _investigate(module, make_plan(sheet, ask), made, tools)


def _investigate(
    module: SheetInvestigation, plan: Plan, made: LabFolder, tools: Tools
) -> LabFinding:
    finding = module.investigate(plan, made.path, tools)
    missing = [*plan.missing, *finding.figures["missing"]]
    told = {**plan.told(), **finding.figures, "missing": missing}
    made.close(status=schema.COMPLETED, answer=finding.answer, holds=finding.holds, **told)
    return LabFinding(finding.answer, finding.holds, {**told, "path": str(made.path)})


def _module_of(sheet: Sheet) -> SheetInvestigation:
    """Import what does a sheet's lab.

    Before its folder is there: a request to stop that comes in the middle of an import is not
    always seen as one.
    """
    return cast(SheetInvestigation, _module(sheet.name))


_PROCEDURES = "stepscope.experiments.labs.procedures"
_FILES = {
    "efficient-inference": "efficient_lab",
    "imagenet": "architectures_lab",
    "mobilebert": "architectures_lab",
}


def procedure_of(name: str) -> str:
    """Return the module that carries out a lab."""
    return f"{_PROCEDURES}.{_FILES.get(name, name.replace('-', '_') + '_lab')}"


def _module(name: str) -> Any:
    return importlib.import_module(procedure_of(name))


# --- Two kinds of trials compared: what one saved, and whether that is a difference


@dataclass(frozen=True)
class Saving:
    """The median of what was saved round by round, and how far the rounds lie apart."""

    saved_bytes: int
    spread_bytes: int

    @property
    def differs(self) -> bool:
        """Whether what was saved, or lost, is more than the rounds differ by."""
        return abs(self.saved_bytes) > self.spread_bytes


def saving(without_bytes: Sequence[int], with_bytes: Sequence[int]) -> Saving:
    """Compare peaks of trials that were made in turns, without and with a change."""
    saved = [before - after for before, after in zip(without_bytes, with_bytes, strict=True)]
    return Saving(round(median(saved)), max(saved) - min(saved))


@dataclass(frozen=True)
class Cost:
    """By what a step's time is multiplied: the median of the rounds, and how far they lie apart."""

    ratio: float
    spread: float

    @property
    def differs(self) -> bool:
        """Whether a step takes longer, or less long, by more than the rounds differ by."""
        return abs(self.ratio - 1) > self.spread


def cost(without_s: Sequence[Sequence[float]], with_s: Sequence[Sequence[float]]) -> Cost:
    """Compare the steps of trials that were made in turns: round by round, by their medians."""
    ratios = [
        median(after) / median(before) for before, after in zip(without_s, with_s, strict=True)
    ]
    return Cost(median(ratios), max(ratios) - min(ratios))

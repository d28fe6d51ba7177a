"""Experiments by name: each answers one question for this machine, with what it measured itself.

A lab is a sheet in `sheets`. Most sheets are a sweep: `sweep_lab` tries their settings, makes the
rows that they name, and has one of `lab_answers` draw the conclusion. The others name a procedure.
Two labs have no sheet: they look at one training from inside, in `procedures`.
"""

from __future__ import annotations

import contextlib
import importlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stepscope.errors import Interrupted, RequestError, nearest
from stepscope.experiments.labs.board_protocol import missing_of_protocol
from stepscope.experiments.labs.command_labs import scaling_lab, workers_lab
from stepscope.experiments.labs.lab_answers import ANSWERS
from stepscope.experiments.labs.lab_plan import LabRequest, Plan, make_plan
from stepscope.experiments.labs.lab_sheet import Sheet, read_sheet, sheet_names
from stepscope.experiments.labs.lab_trials import LabResult, LabRow, SettingTrials, try_settings
from stepscope.experiments.sweep_run import SweepListener, working_in
from stepscope.experiments.workload import dataset_of
from stepscope.models import registry
from stepscope.records import schema
from stepscope.records.run_folder import RecordFolder, make_latest_folder, read_record
from stepscope.records.types import (
    LabAnswer,
    LabRecord,
    MemoryLabAnswer,
    SecondEpochAnswer,
    SettingValue,
)
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import resolve_request, with_changes

if TYPE_CHECKING:
    from stepscope.models.model_summary import NetworkSummary

Procedure = Callable[[Plan, Path, SweepListener], LabResult]

WITHOUT_SHEET = {
    "memory": "why a training takes the memory that it takes, when it goes, what saves some",
    "second-epoch": "workers that do not fit: forecast, ended under a limit, and nothing lost",
}


def labs() -> dict[str, str]:
    """List every lab, and what it is about."""
    return {name: read_sheet(name).about for name in sheet_names()} | WITHOUT_SHEET


def find_sheet(name: str) -> Sheet | None:
    """Return the sheet of a lab; None for a lab that has none.

    Raises:
        RequestError: there is no such lab.
    """
    if name in WITHOUT_SHEET:
        return None
    if name not in sheet_names():
        raise RequestError(f"unknown lab {name!r}.{nearest(name, labs())}")
    return read_sheet(name)


def run_lab(sheet: Sheet, request: LabRequest, listener: SweepListener) -> LabAnswer:
    """Run the lab of a sheet in a new folder. Its plots are not drawn yet."""
    plan = make_plan(sheet, request)
    procedure = procedure_of(sheet)
    with _new_folder(plan, request) as folder:
        return _run(procedure, plan, folder, listener)


def resume(path: Path, listener: SweepListener) -> LabAnswer:
    """Do what is missing of a lab that was stopped, in its folder; what was run is not run again.

    Raises:
        RequestError: the folder is of no lab that can go on.
    """
    path, info = read_record(path, LabFolder.INFO, "lab")
    sheet, request = find_sheet(str(info.get("lab"))), LabRequest.from_json(info.get("ask"))
    if sheet is None or request is None:
        raise RequestError(f"{path} does not say what was asked for. Begin anew: stepscope lab.")
    procedure = procedure_of(sheet)
    folder = LabFolder(path.resolve())
    with working_in(info.get("directory")), folder.held():
        folder.update_info(status=schema.RUNNING, reason=None)
        with _recorded_errors(folder):
            return _run(procedure, make_plan(sheet, request), folder, listener)


def _run(procedure: Procedure, plan: Plan, folder: LabFolder, listener: SweepListener) -> LabAnswer:
    result = procedure(plan, folder.path, listener)
    answer = cast(
        LabAnswer,
        {
            "lab": plan.sheet.name,
            "question": plan.sheet.question,
            "answer": result.answer,
            "holds": result.holds,
            "published": plan.sheet.published,
            **plan.to_json(),
            "missing": [*plan.missing, *result.missing],
            "rows": list(result.rows),
            "curves": list(result.curves),
            **result.extras,
            "path": str(folder.path),
            "plots": [],
        },
    )
    not_recorded = ("question", "published", "path", "plots")
    recorded = {name: value for name, value in answer.items() if name not in not_recorded}
    folder.close(**{**recorded, "status": schema.COMPLETED})
    return answer


def procedure_of(sheet: Sheet) -> Procedure:
    """Return what runs a sheet's lab, imported.

    Before its folder is there: a request to stop that comes in the middle of an import is not
    always seen as one.
    """
    known: Mapping[str, Procedure] = {
        "sweep": sweep_lab,
        "workers": workers_lab,
        "scaling": scaling_lab,
    }
    if sheet.procedure in known:
        return known[sheet.procedure]
    module = importlib.import_module(f"{_PROCEDURES}.{sheet.procedure}_lab")
    return cast(Procedure, module.run_lab)


_PROCEDURES = "stepscope.experiments.labs.procedures"


def run_without_sheet(
    name: str, flags: Mapping[str, SettingValue], listener: SweepListener
) -> MemoryLabAnswer | SecondEpochAnswer:
    """Run a lab that looks at one training from inside."""
    from stepscope.experiments.labs.procedures import memory_lab, second_epoch_lab

    if name == "memory":
        return memory_lab.run_lab(resolve_request(None, {**memory_lab.DEFAULTS, **flags}), listener)
    spec = resolve_request(None, {**second_epoch_lab.DEFAULTS, **flags})
    return second_epoch_lab.run_lab(spec, listener)


# --- The general procedure


def sweep_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Try the settings of a sheet, make the rows that it names, and draw its conclusion."""
    sheet = plan.sheet
    trials = try_settings(plan, folder, listener)
    by_epoch = sheet.rows == "epochs"
    rows = trials.curves if by_epoch else [_row_of(plan, each) for each in trials.settings]
    conclusion = ANSWERS[sheet.answer](trials, rows)
    if conclusion.chosen is not None:
        rows[trials.settings.index(conclusion.chosen)]["chosen"] = True
    if conclusion.last_row is not None:
        rows.append(conclusion.last_row)
    missing = [*trials.missing, *(missing_of_protocol(trials) if sheet.board_protocol else ())]
    curves = trials.curves if conclusion.holds and sheet.has_curves else []
    return LabResult(conclusion.answer, conclusion.holds, rows, missing, curves)


def _row_of(plan: Plan, trials: SettingTrials) -> LabRow:
    sheet = plan.sheet
    row = trials.row(*sheet.figures)
    if sheet.counted:
        network = count_for(with_changes(plan.asked, trials.setting.values))
        row |= {name: getattr(network, name) for name in sheet.counted}
    for name, figure in sheet.by_epoch.items():
        row[name] = [epoch[figure] for epoch in trials.epochs.values()]
    return row


def count_for(spec: RunSpec) -> NetworkSummary:
    """Count the network of a spec for the samples and the classes of its data."""
    from stepscope.models.model_summary import count_network  # needs torch

    dataset = dataset_of(spec)
    built = registry.build(spec.model, classes=dataset.classes, norm=spec.norm)
    return count_network(built, dataset.shape, spec.model, dataset.tokens)


# --- The folder of a lab: what it found in `lab.json`, its plots, and the sweep that it made


class LabFolder(RecordFolder[LabRecord]):
    """A lab's folder on disk, open for writing."""

    INFO = "lab.json"


@contextlib.contextmanager
def _new_folder(plan: Plan, request: LabRequest) -> Iterator[LabFolder]:
    """Make `OUT/<time>-lab-<name>/`, and point `OUT/latest` to it; an error is noted in it."""
    name, out = plan.sheet.name, Path(plan.spec.out)

    def fill(building: Path, identity: str) -> None:
        started = {"schema": schema.SCHEMA, "id": identity, "kind": "lab", "lab": name}
        now = {"started_unix_s": time.time(), "status": schema.RUNNING, "reason": None}
        asked = {"ask": request.to_json(), "directory": str(Path.cwd())}
        record = cast(LabRecord, {**started, **now, **plan.to_json(), **asked})
        LabFolder(building).write_info(record)

    folder = LabFolder(make_latest_folder(out, f"lab-{name}", fill, what="lab"))
    with _recorded_errors(folder):
        yield folder


@contextlib.contextmanager
def _recorded_errors(folder: LabFolder) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        folder.close(status=schema.INTERRUPTED, reason="interrupted")
        again = f"stepscope lab --resume {shlex.quote(str(folder.path))}"
        raise Interrupted(f"interrupted; go on with: {again}") from error
    except BaseException as error:
        folder.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
        raise

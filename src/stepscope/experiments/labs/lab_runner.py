"""Run experiments by name: each answers one question by measurements on this machine.

Most sheets are a sweep, run by `sweep_lab`; the others name a procedure. Two labs without a sheet
examine a single training.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

from stepscope.analyze.scaling import scaling_of
from stepscope.errors import AnswerIsNo, Interrupted, RequestError, nearest
from stepscope.experiments import scale_trials
from stepscope.experiments.labs import lab_answers
from stepscope.experiments.labs.lab_plan import (
    LabRequest,
    Plan,
    Sheet,
    make_plan,
    read_sheet,
    sheet_names,
)
from stepscope.experiments.labs.lab_trials import (
    LabResult,
    LabRow,
    SettingTrials,
    missing_of_protocol,
    try_settings,
)
from stepscope.experiments.sweep_run import SweepListener, working_in
from stepscope.experiments.worker_trials import find_workers
from stepscope.experiments.workload import TrainingWorkload, dataset_of
from stepscope.models import registry
from stepscope.records import schema
from stepscope.records.run_folder import RecordFolder, read_record
from stepscope.records.types import (
    LabAnswer,
    LabRecord,
    LabValue,
    MemoryLabAnswer,
    NetworkCounts,
    SecondEpochAnswer,
    SettingValue,
)
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import resolve_request, with_changes
from stepscope.units import format_count


class LabFolder(RecordFolder[LabRecord]):
    """A lab's folder on disk: its record, its plots and its sweep."""

    INFO = "lab.json"


Procedure = Callable[[Plan, Path, SweepListener], LabResult]

WITHOUT_SHEET = {
    "memory": "why a training takes so much memory, and what saves some",
    "second-epoch": "whether a run survives when its workers run out of memory",
}


def labs() -> dict[str, str]:
    """List every lab with its description."""
    return {name: read_sheet(name).about for name in sheet_names()} | WITHOUT_SHEET


def find_sheet(name: str) -> Sheet | None:
    """Return the sheet of a lab; None for a lab that has none."""
    if name in WITHOUT_SHEET:
        return None
    if name not in sheet_names():
        raise RequestError(f"unknown lab {name!r}.{nearest(name, labs())}")
    return read_sheet(name)


def run_lab(sheet: Sheet, request: LabRequest, listener: SweepListener) -> LabAnswer:
    """Run the lab of a sheet in a new folder. Its plots are not drawn yet."""
    plan = make_plan(sheet, request)
    procedure = procedure_of(sheet)

    asked = {"kind": "lab", "lab": sheet.name, "ask": asdict(request), "directory": str(Path.cwd())}
    out, name = Path(plan.spec.out), f"lab-{sheet.name}"
    folder = LabFolder.make_latest(out, name, {**plan.to_json(), **asked})
    return _run(procedure, plan, folder, listener)


def resume(path: Path, listener: SweepListener) -> LabAnswer:
    """Run the missing trials of an interrupted lab, in its folder."""
    path, info, _ = read_record(path, LabFolder.INFO, LabRecord, {})
    sheet, requested = find_sheet(info["lab"]), info["ask"]
    if sheet is None:
        raise RequestError(f"{path} has no recorded request. Start again: stepscope lab NAME")
    procedure = procedure_of(sheet)
    folder = LabFolder(path.resolve())
    with working_in(info.get("directory")), folder.held():
        plan = make_plan(sheet, LabRequest(**requested))
        folder.update_info(status=schema.RUNNING, reason=None)
        return _run(procedure, plan, folder, listener)


def _run(procedure: Procedure, plan: Plan, folder: LabFolder, listener: SweepListener) -> LabAnswer:
    """Run a plan; record its answer, or how it ended."""
    try:
        result = procedure(plan, folder.path, listener)
    except (KeyboardInterrupt, Interrupted) as error:
        folder.close(status=schema.INTERRUPTED, reason="interrupted")
        again = f"stepscope lab --resume {shlex.quote(str(folder.path))}"
        raise Interrupted(f"interrupted. Continue with: {again}") from error
    except BaseException as error:
        folder.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
        raise
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
    """Import the procedure of a sheet.

    Call it before the lab has a folder: an import can swallow a request to stop.
    """
    known = {"sweep": sweep_lab, "workers": workers_lab, "scaling": scaling_lab}
    if sheet.procedure in known:
        return known[sheet.procedure]
    module = importlib.import_module(f"{__package__}.procedures.{sheet.procedure}_lab")
    return cast(Procedure, module.run_lab)


def run_without_sheet(
    name: str, flags: Mapping[str, SettingValue], listener: SweepListener
) -> MemoryLabAnswer | SecondEpochAnswer:
    """Run a lab that examines a single training."""
    from stepscope.experiments.labs.procedures import memory_lab, second_epoch_lab

    if name == "memory":
        return memory_lab.run_lab(resolve_request(None, {**memory_lab.DEFAULTS, **flags}), listener)
    spec = resolve_request(None, {**second_epoch_lab.DEFAULTS, **flags})
    return second_epoch_lab.run_lab(spec, listener)


def sweep_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Try the settings of a sheet, and draw the conclusion that it names."""
    sheet = plan.sheet
    trials = try_settings(plan, folder, listener)
    by_epoch = sheet.rows == "epochs"
    rows = trials.curves if by_epoch else [_row_of(plan, each) for each in trials.settings]
    conclude: lab_answers.Answer = getattr(lab_answers, sheet.answer)
    conclusion = conclude(trials, rows)
    if conclusion.chosen is not None:
        rows[trials.settings.index(conclusion.chosen)]["chosen"] = True
    if conclusion.last_row is not None:
        rows.append(conclusion.last_row)
    missing = [*trials.missing, *(missing_of_protocol(trials) if sheet.board_protocol else ())]
    has_curves = any(plot.get("rows") == "curves" for plot in sheet.plots)
    curves = trials.curves if conclusion.holds and has_curves else []
    return LabResult(conclusion.answer, conclusion.holds, rows, missing, curves)


def _row_of(plan: Plan, trials: SettingTrials) -> LabRow:
    sheet = plan.sheet
    row = trials.row(*sheet.figures)
    if sheet.counted:
        network = count_for(with_changes(plan.base, trials.setting.values))
        row |= {name: cast(LabValue, dict(network)[name]) for name in sheet.counted}
    for name, figure in sheet.by_epoch.items():
        row[name] = [epoch[figure] for epoch in trials.epochs.values()]
    return row


def count_for(spec: RunSpec) -> NetworkCounts:
    """Count the layers of a spec's network for the shape and classes of its data."""
    from stepscope.models.model_summary import count_network  # needs torch

    dataset = dataset_of(spec)
    built = registry.build(spec.model, classes=dataset.classes, norm=spec.norm)
    return count_network(built, dataset.shape, spec.model, dataset.tokens)


# --- The labs that answer what `stepscope workers` and `stepscope scale` answer


def workers_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Find and verify the number of workers, in as many rounds as that takes."""
    try:
        found = find_workers(TrainingWorkload(plan.base), listener, out=folder, name="workers")
    except AnswerIsNo as error:
        return LabResult(f"No answer: {error}", holds=False)
    rows: list[LabRow] = []
    for each in found["candidates"]:
        rate, threads = each["samples_per_s"], each["threads"]
        tried = each["workers"] if threads is None else f"{each['workers']}, threads {threads}"
        rates = {"samples_per_s": rate["median"]}
        rates |= {"samples_per_s_low": rate["low"], "samples_per_s_high": rate["high"]}
        tied = "yes" if each["tied_with_best"] else "no"
        rows.append({**cast(LabRow, each), **rates, "tried": tried, "tied": tied})
    current = format_count(found["current"], "worker")
    bound = f"With {current} the training is bound by {found['bound_by']}: {found['bound_by_why']}."
    return LabResult(f"{found['text']} {bound}", rows=rows, extras={"workers": found})


def scaling_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Measure the sheet's numbers of processes, with strong and weak scaling."""
    request = scale_trials.ScaleRequest(
        {**plan.base, "out": str(folder), "name": "trials"},
        tuple({int(str(setting.values["processes"])) for setting in plan.settings}),
        plan.repeats,
    )
    try:
        found = scaling_of(scale_trials.start(request, listener))
    except AnswerIsNo as error:
        return LabResult(f"No answer: {error}", holds=False)
    answer = " ".join([found["answer"], *(f"Note: {note}." for note in found["notes"])])
    rows: list[LabRow] = []
    for each in found["measured"]:
        row = {**cast(LabRow, each), "speedup_low": each["low"], "speedup_high": each["high"]}
        row["status"] = each["reason"] or schema.COMPLETED
        if each["processes"] == 1:
            del row["communication_s"]
        rows.append(row)
    return LabResult(answer, rows=rows, extras={"scaling": found})

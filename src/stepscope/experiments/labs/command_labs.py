"""Labs that ask what `stepscope workers` and `stepscope scale` ask, for the training of a sheet."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from stepscope.analyze.scaling_answer import scaling_of
from stepscope.errors import AnswerIsNo
from stepscope.experiments import scale_trials
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_trials import LabResult, LabRow
from stepscope.experiments.sweep_run import SweepListener
from stepscope.experiments.worker_trials import find_workers
from stepscope.experiments.workload import TrainingWorkload
from stepscope.records import schema
from stepscope.records.types import MeasuredScaling, WorkerCandidate, WorkersAnswer
from stepscope.units import format_count

# --- workers: how many should load the data?


def workers_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Have the number of workers found and verified, in as many rounds as that takes."""
    try:
        found = find_workers(TrainingWorkload(plan.asked), listener, out=folder, name="workers")
    except AnswerIsNo as error:
        return LabResult(f"No answer: {error}", holds=False)
    rows = [_worker_row(each) for each in found["candidates"]]
    return LabResult(_workers_sentence(found), rows=rows, extras={"workers": found})


def _worker_row(candidate: WorkerCandidate) -> LabRow:
    rate, workers, threads = candidate["samples_per_s"], candidate["workers"], candidate["threads"]
    return {
        **cast(LabRow, candidate),
        "samples_per_s": rate["median"],
        "samples_per_s_low": rate["low"],
        "samples_per_s_high": rate["high"],
        "tried": workers if threads is None else f"{workers}, threads {threads}",
        "tied": "yes" if candidate["tied_with_best"] else "no",
    }


def _workers_sentence(found: WorkersAnswer) -> str:
    threads = found["recommended_threads"]
    with_threads = "" if threads is None else f" with {threads} compute threads"
    sure = "Use" if found["decided"] else "Undecided; on what was seen use"
    verified = found["verified"]
    if verified["ratio"] is None:
        check = f"not verified: {verified['reason']}"
    else:
        current = format_count(found["current"], "worker")
        check = f"{verified['ratio']:.2f} times the throughput of {current}"
        if verified["low"] is not None:
            rounds = f"in {verified['rounds']} rounds"
            check += f" ({verified['low']:.2f} to {verified['high']:.2f} {rounds})"
        check += f", {verified['verdict']}"
    return (
        f"{sure} {format_count(found['recommended'], 'worker')}{with_threads}: {found['why']}; "
        f"{check}. "
        f"With {found['current']} the training is bound by {found['bound_by']}: "
        f"{found['bound_by_why']}."
    )


# --- scaling: what does a second process bring?


_BATCH = {"strong": "the same", "weak": "for each process"}


def scaling_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Measure the numbers of processes of the sheet, strong and weak, in rounds."""
    request = scale_trials.ScaleRequest(
        {**plan.asked, "out": str(folder), "name": "trials"},
        tuple({int(str(setting.values["processes"])) for setting in plan.settings}),
        plan.repeats,
    )
    try:
        found = scaling_of(scale_trials.start(request, listener))
    except AnswerIsNo as error:
        return LabResult(f"No answer: {error}", holds=False)
    answer = " ".join([found["answer"], *(f"Note: {note}." for note in found["notes"])])
    rows = [_scaling_row(each) for each in found["measured"]]
    return LabResult(answer, rows=rows, extras={"scaling": found})


def _scaling_row(measured: MeasuredScaling) -> LabRow:
    """Make a row of the table; what one process cannot have is left out of it."""
    row: LabRow = {
        **cast(LabRow, measured),
        "mode": _BATCH[measured["mode"]],
        "speedup_low": measured["low"],
        "speedup_high": measured["high"],
        "status": measured["reason"] or schema.COMPLETED,
    }
    if measured["processes"] == 1:
        del row["communication_s"]
    return row

"""The labs that answer what `stepscope workers` and `stepscope scale` answer, for their sheets."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from stepscope.analyze.scaling import scaling_of
from stepscope.errors import AnswerIsNo
from stepscope.experiments import scale_trials
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_trials import LabResult, LabRow
from stepscope.experiments.sweep_run import SweepListener
from stepscope.experiments.worker_trials import find_workers
from stepscope.experiments.workload import TrainingWorkload
from stepscope.records import schema
from stepscope.records.types import WorkersAnswer
from stepscope.units import format_count


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
    return LabResult(_workers_sentence(found), rows=rows, extras={"workers": found})


def _workers_sentence(found: WorkersAnswer) -> str:
    advice = format_count(found["recommended"], "worker")
    if found["recommended_threads"] is not None:
        advice += f" with {found['recommended_threads']} compute threads"
    current, verified = format_count(found["current"], "worker"), found["verified"]
    if verified["ratio"] is None:
        check = f"Not verified: {verified['reason']}"
    else:
        check = f"Verified: {verified['ratio']:.2f} times the throughput of {current}"
        if verified["low"] is not None:
            rounds = f"in {verified['rounds']} rounds"
            check += f" ({verified['low']:.2f} to {verified['high']:.2f} {rounds})"
        check += f", {verified['verdict']}"
    return (
        f"{'Use' if found['decided'] else 'Undecided; so far, use'} {advice}: {found['why']}. "
        f"{check}. With {current} the training is bound by {found['bound_by']}: "
        f"{found['bound_by_why']}."
    )


def scaling_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Measure the sheet's numbers of processes, strong and weak, in rounds."""
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

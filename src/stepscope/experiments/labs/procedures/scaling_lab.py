"""What does a second process bring? As `stepscope scale` measures it, for the sheet's training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.analyze.scaling_answer import scaling_of
from stepscope.errors import AnswerIsNo
from stepscope.experiments import scale_trials
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.records import schema

_BATCH = {"strong": "the same", "weak": "for each process"}


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Measure the numbers of processes of the sheet, strong and weak, in rounds."""
    request = scale_trials.ScaleRequest(
        {**plan.asked, "out": str(folder), "name": "trials"},
        tuple({setting.values["processes"] for setting in plan.settings}),
        plan.repeats,
    )
    try:
        told = scaling_of(scale_trials.start(request, tools.listener))
    except AnswerIsNo as error:
        return found(f"No answer: {error}", False, [], [])
    answer = " ".join([told["answer"], *(f"Note: {note}." for note in told["notes"])])
    finding = found(answer, True, [_row(each) for each in told["measured"]], [])
    finding.figures["scaling"] = told
    return finding


def _row(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Make a row of the table; what one process cannot have is left out of it."""
    row = {
        **measured,
        "mode": _BATCH[measured["mode"]],
        "speedup_low": measured["low"],
        "speedup_high": measured["high"],
        "status": measured["reason"] or schema.COMPLETED,
    }
    if row["processes"] == 1:
        del row["communication_s"]
    return row

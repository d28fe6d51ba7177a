"""How many loader workers? What `stepscope workers` finds for the training of the sheet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import AnswerIsNo
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.worker_trials import find_workers
from stepscope.experiments.workload import TrainingWorkload
from stepscope.units import format_count


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Have the number found and verified, in as many rounds as that takes."""
    workload = TrainingWorkload(plan.asked)
    try:
        answer = find_workers(workload, tools.listener, out=folder, name="workers")
    except AnswerIsNo as error:
        return found(f"No answer: {error}", False, [], [])
    finding = found(_sentence(answer), True, [_row(each) for each in answer["candidates"]], [])
    finding.figures["workers"] = answer
    return finding


def _row(candidate: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: value for key, value in candidate.items() if key != "samples_per_s"}
    rate = candidate["samples_per_s"]
    figures = {
        "samples_per_s": rate["median"],
        "samples_per_s_low": rate["low"],
        "samples_per_s_high": rate["high"],
    }
    threads = candidate["threads"]
    tried = (
        candidate["workers"] if threads is None else f"{candidate['workers']}, threads {threads}"
    )
    tied = "yes" if candidate["tied_with_best"] else "no"
    return {**row, **figures, "tried": tried, "tied": tied}


def _sentence(answer: Mapping[str, Any]) -> str:
    threads = answer["recommended_threads"]
    with_threads = "" if threads is None else f" with {threads} compute threads"
    sure = "Use" if answer["decided"] else "Undecided; on what was seen use"
    verified = answer["verified"]
    if verified["ratio"] is None:
        check = f"not verified: {verified['reason']}"
    else:
        current = format_count(answer["current"], "worker")
        check = f"{verified['ratio']:.2f} times the throughput of {current}"
        if verified["low"] is not None:
            rounds = f"in {verified['rounds']} rounds"
            check += f" ({verified['low']:.2f} to {verified['high']:.2f} {rounds})"
        check += f", {verified['verdict']}"
    return (
        f"{sure} {format_count(answer['recommended'], 'worker')}{with_threads}: {answer['why']}; "
        f"{check}. "
        f"With {answer['current']} the training is bound by {answer['bound_by']}: "
        f"{answer['bound_by_why']}."
    )

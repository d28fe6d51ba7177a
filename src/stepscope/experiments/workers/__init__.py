"""How many loader workers? Tried under the real consumer, decided by intervals, verified.

setup        what is known beforehand: what is set now, how long an epoch is, what bounds workers
candidates   which numbers this machine could run at all
budget       how many steps and rounds may be spent
board        what has been seen, and what follows from it (pure)
search       the trials themselves, and the answer
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.errors import AnswerIsNo, RequestError
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.subjects import OwnScript, OwnTraining
from stepscope.experiments.sweep.execute import Bench, Onlooker
from stepscope.experiments.workers.search import Search
from stepscope.experiments.workers.setup import (
    LOOK_STEPS,
    Setup,
    setup_of_script,
    setup_of_training,
)
from stepscope.records import reader, schema
from stepscope.records.sweep import create_sweep, load_sweep


def find_workers(
    subject: OwnTraining | OwnScript,
    onlooker: Onlooker,
    summarize: Summarize,
    *,
    out: Path,
    name: str,
) -> dict[str, Any]:
    """Find the number of workers to use, and return it with all that carries it.

    The trials are kept in a folder like a sweep's.

    Raises:
        RequestError: there is no loader that workers could be given to.
        AnswerIsNo: no number of workers came to its end.
        Interrupted: somebody asked to stop.
    """
    subject.check({})
    asked = {"kind": "workers", **subject.to_json(), "over": None}
    bench = Bench(create_sweep(out, name, asked, []), subject, onlooker, summarize)
    with bench.open():
        if isinstance(subject, OwnTraining):
            setup = setup_of_training(subject)
        else:
            setup = _look_at_script(bench, subject)
        search = Search(replace(bench, subject=setup.subject), setup)
        answer = search.run().to_json()
    return {**answer, "path": str(bench.folder.path)}


def _look_at_script(bench: Bench, subject: OwnScript) -> Setup:
    """Run somebody's script for a few steps as it is, to see what its loader is like."""
    trial = bench.add({"max_steps": LOOK_STEPS}, 0)
    if trial.status != schema.COMPLETED or trial.exit_code:
        error = RequestError if trial.exit_code == RequestError.exit_code else AnswerIsNo
        folder = load_sweep(bench.folder.path).folder_of(trial)
        raise error(f"{trial.reason}. What the script printed is in {folder}.")
    return setup_of_script(subject, reader.load_run(load_sweep(bench.folder.path).folder_of(trial)))

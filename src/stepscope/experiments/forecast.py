"""A forecast of a run's memory, made in a process like the one that would train."""

from __future__ import annotations

from typing import Any

from stepscope.errors import AnswerIsNo
from stepscope.experiments import preflight
from stepscope.experiments.asking import ask
from stepscope.experiments.fork_server import ForkServer
from stepscope.spec import RunSpec

_MODULE = "stepscope.train.forecast_child"


def forecast(spec: RunSpec, fork_server: ForkServer | None = None) -> dict[str, Any]:
    """Return the memory bill of a run, with its phases and what would lower it.

    Raises:
        StepscopeError: the run could not be made, or nothing can be said of it.
    """
    preflight.check(spec)
    answer = ask(_MODULE, spec.model_dump(mode="json"), fork_server=fork_server)
    if "items" not in answer:
        raise AnswerIsNo(f"no forecast: {answer['reason']}.")
    return answer

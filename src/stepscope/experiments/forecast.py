"""A forecast of a run's memory, made in a process like the one that would train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from stepscope.errors import (
    AnswerIsNo,
    MachineError,
    OutOfMemoryError,
    RequestError,
    StepscopeError,
)
from stepscope.experiments import preflight
from stepscope.spec import RunSpec

_BY_EXIT_CODE = {
    error.exit_code: error for error in (AnswerIsNo, RequestError, OutOfMemoryError, MachineError)
}


def forecast(spec: RunSpec) -> dict[str, Any]:
    """Return the memory bill of a run, with its phases and what would lower it.

    Raises:
        StepscopeError: the run could not be made, or nothing can be said of it.
    """
    preflight.check(spec)
    asked = json.dumps(spec.model_dump(mode="json"))
    done = subprocess.run(
        [sys.executable, "-m", "stepscope.train.forecast_child"],
        input=asked,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    if not done.stdout:
        raise OutOfMemoryError(
            f"the forecast ended with {done.returncode} and no word: its process was killed, or "
            "there was no memory to build the network."
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise _BY_EXIT_CODE.get(answer["exit_code"], StepscopeError)(answer["error"])
    if "items" not in answer:
        raise AnswerIsNo(f"no forecast: {answer['reason']}.")
    return answer

"""A few real steps in a process of their own, which tells what memory they took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from stepscope.errors import MachineError, OutOfMemoryError, RequestError, StepscopeError
from stepscope.spec import RunSpec

_BY_EXIT_CODE = {error.exit_code: error for error in (RequestError, OutOfMemoryError, MachineError)}


def try_steps(
    spec: RunSpec, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Have `train.memory_trial` take some steps of a spec, and return what it saw.

    Raises:
        StepscopeError: it cannot be done; a RequestError where the change does not apply.
    """
    asked = json.dumps({"spec": spec.model_dump(mode="json"), "options": dict(options)})
    done = subprocess.run(
        [sys.executable, "-m", "stepscope.train.memory_trial"],
        input=asked,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})},
    )
    if not done.stdout:
        raise OutOfMemoryError(
            f"a trial of some steps ended with {done.returncode} and no word: its process was "
            "killed, or there was no memory for it. Choose a smaller --batch-size."
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise _BY_EXIT_CODE.get(answer["exit_code"], StepscopeError)(answer["error"])
    return answer

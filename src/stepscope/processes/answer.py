"""Processes that answer one request: JSON on standard input, one JSON object on standard output.

`supervisor.ask_process` is the side that sends the request.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.errors import MachineError, MissingExtraError, StepscopeError
from stepscope.hardware.die_with_parent import die_with_parent

# `import torch` raises an OSError if a shared library is missing.
FAILURES = (ImportError, OSError)


def answer_once(answer: Callable[[Any], Mapping[str, object]]) -> None:
    """Write the answer to standard output; redirect the output of a model to standard error."""
    die_with_parent(os.getppid())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            response = answer(json.load(sys.stdin))
        except StepscopeError as error:
            response = {"error": str(error), "exit_code": error.exit_code}
        answers.write(json.dumps(response))
    sys.stderr.flush()
    os._exit(0)  # a thread that the model left running would keep the process alive


def cannot_load(needed_for: str, error: ImportError | OSError) -> MachineError:
    """Return the error to raise when `import torch` fails."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return MissingExtraError(needed_for, "torch", "train")
    return MachineError(
        f"{needed_for} needs torch, which is installed but does not load: {error}. Install what is "
        "missing, or a torch that is built for this machine."
    )

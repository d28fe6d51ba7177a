"""Processes that answer one request: JSON on standard input, one JSON object on standard output.

`supervisor.ask_process` is the side that sends the request.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepscope.errors import MachineError, MissingExtraError, StepscopeError
from stepscope.hardware.die_with_parent import die_with_parent


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


@contextlib.contextmanager
def needing_torch(needed_for: str) -> Iterator[None]:
    """Raise MachineError, with what to do, if an import of torch inside the context fails."""
    try:
        yield
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise MissingExtraError(needed_for, "torch", "train") from error
        raise MachineError(
            f"{needed_for} needs torch, which is installed but does not load: {error}. Install "
            "what is missing, or a torch that is built for this machine."
        ) from error

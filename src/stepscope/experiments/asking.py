"""Ask a process of its own one thing, and take its error as ours (`train.answering`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from stepscope.errors import OutOfMemoryError, error_of


def ask(
    module: str, asked: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Start a module that answers once, ask it, and return its answer.

    Raises:
        StepscopeError: what the process raised, or that it was killed.
    """
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        # A file in the working directory that is called like a library must not be taken for it.
        env={**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})},
    )
    if not done.stdout:
        raise OutOfMemoryError(
            f"{module} ended with {done.returncode} and no word: it was killed, or there was no "
            "memory for the network. Choose a smaller one, or free some memory."
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise error_of(answer["exit_code"], answer["error"])
    return answer

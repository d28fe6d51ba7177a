"""Ask a child process one question and return its answer (the child side is `processes.answer`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from stepscope.errors import AnswerIsNo, OutOfMemoryError, error_of
from stepscope.records.types import MemoryAnswer
from stepscope.settings import RunSpec
from stepscope.supervisor import preflight
from stepscope.supervisor.warm_start import ChildProcess, ForkServer


def ask_process(
    module: str,
    asked: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    fork_server: ForkServer | None = None,
) -> Any:
    """Start a module that answers one question, and return its answer: a JSON object.

    It is forked where a fork server is given, unless it needs another environment: torch reads
    some variables when it is imported.

    Raises:
        StepscopeError: what the process raised, or that it was killed.
    """
    with tempfile.TemporaryFile() as question:
        question.write(json.dumps(asked).encode())
        question.seek(0)
        process = _start(module, question, environment, None if environment else fork_server)
        assert process.stdout is not None
        try:
            with process.stdout:
                said = process.stdout.read()
        except BaseException:
            process.kill()
            raise
        finally:
            code = process.wait()
    if not said:
        raise OutOfMemoryError(
            f"{module} ended with {code} and no word: it was killed, or there was no "
            "memory for the network. Choose a smaller one, or free some memory."
        )
    answer: dict[str, Any] = json.loads(said)
    if "error" in answer:
        raise error_of(answer["exit_code"], answer["error"])
    return answer


def _start(
    module: str,
    question: IO[bytes],
    environment: Mapping[str, str] | None,
    fork_server: ForkServer | None,
) -> ChildProcess:
    # A file in the working directory that is called like a library must not be taken for it.
    environment = {**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})}
    if fork_server is not None:
        forked = fork_server.fork(module, [], environment, stdin=question.fileno(), stderr=2)
        if forked is not None:
            return forked
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=question, stdout=subprocess.PIPE, env=environment
    )


_MODULE = "stepscope.processes.forecast_process"


def forecast(spec: RunSpec, fork_server: ForkServer | None = None) -> MemoryAnswer:
    """Return the memory bill of a run, with its phases and what would lower it.

    Raises:
        StepscopeError: the run is invalid, or no forecast is possible.
    """
    preflight.check(spec)
    answer: MemoryAnswer = ask_process(
        _MODULE, spec.model_dump(mode="json"), fork_server=fork_server
    )
    if "items" not in answer:
        raise AnswerIsNo(f"no forecast: {answer['reason']}.")
    return answer

"""Ask a child process one question and return its answer (the child side is `processes.answer`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from stepscope.errors import AnswerIsNo, OutOfMemoryError, error_of
from stepscope.records.types import (
    MemoryAnswer,
    MemoryTrialFigures,
    MemoryTrialRequest,
    PeakAnswer,
    PeakRequest,
    RecordedSpec,
    TorchBuild,
)
from stepscope.settings import RunSpec
from stepscope.supervisor import preflight
from stepscope.supervisor.warm_start import ChildProcess, ForkServer

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class AnsweringModule(Generic[Request, Answer]):
    """A module that answers one kind of request, run as with `python -m`."""

    name: str


# How many `processes` are to sum how many `bytes`; the answer is the time of each sum.
ALLREDUCE = AnsweringModule[dict[str, int], dict[str, list[float]]](
    "stepscope.processes.allreduce_benchmark"
)
FORECAST = AnsweringModule[RecordedSpec, MemoryAnswer]("stepscope.processes.forecast_process")
MEMORY_TRIAL = AnsweringModule[MemoryTrialRequest, MemoryTrialFigures](
    "stepscope.processes.memory_trial"
)
PEAKS = AnsweringModule[PeakRequest, PeakAnswer]("stepscope.processes.peak_benchmark")
TORCH_BUILD = AnsweringModule[dict[str, str], TorchBuild]("stepscope.processes.torch_info")


def ask_process(
    module: AnsweringModule[Request, Answer],
    request: Request,
    environment: Mapping[str, str] | None = None,
    fork_server: ForkServer | None = None,
) -> Answer:
    """Start a process that answers one request, and return its answer.

    It is not forked if it needs another environment: torch reads some variables when imported.

    Raises:
        StepscopeError: the error of the process, or that it was killed.
    """
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(request).encode())
        file.seek(0)
        # PYTHONSAFEPATH: a file in the working directory must not hide a library.
        variables = {**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})}
        process: ChildProcess | None = None
        if fork_server is not None and not environment:
            process = fork_server.fork(module.name, [], variables, stdin=file.fileno(), stderr=2)
        if process is None:
            command = [sys.executable, "-m", module.name]
            process = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, env=variables)
        assert process.stdout is not None
        try:
            with process.stdout:
                output = process.stdout.read()
        except BaseException:
            process.kill()
            raise
        finally:
            code = process.wait()
    if not output:
        raise OutOfMemoryError(
            f"{module.name} exited with code {code} and no answer: it was killed, or memory ran "
            "out. Choose a smaller network, or free some memory."
        )
    answer = json.loads(output)
    if "error" in answer:
        raise error_of(answer["exit_code"], answer["error"])
    typed: Answer = answer
    return typed


def forecast(spec: RunSpec, fork_server: ForkServer | None = None) -> MemoryAnswer:
    """Return the memory bill of a run, with its phases and what would lower it."""
    preflight.check(spec)
    answer = ask_process(FORECAST, spec.model_dump(mode="json"), fork_server=fork_server)
    if "items" not in answer:
        raise AnswerIsNo(f"no forecast: {answer['reason']}.")
    return answer

"""Ask a child process one question and return its answer (the child side is `processes.answer`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Generic, TypeVar

from stepscope.errors import AnswerIsNo, OutOfMemoryError, error_of
from stepscope.records.types import (
    AllreduceAnswer,
    AllreduceRequest,
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

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class AnsweringModule(Generic[Asked, Answer]):
    """A module that answers one kind of request, run as with `python -m`."""

    name: str


ALLREDUCE = AnsweringModule[AllreduceRequest, AllreduceAnswer](
    "stepscope.processes.allreduce_benchmark"
)
FORECAST = AnsweringModule[RecordedSpec, MemoryAnswer]("stepscope.processes.forecast_process")
MEMORY_TRIAL = AnsweringModule[MemoryTrialRequest, MemoryTrialFigures](
    "stepscope.processes.memory_trial"
)
PEAKS = AnsweringModule[PeakRequest, PeakAnswer]("stepscope.processes.peak_benchmark")
TORCH_BUILD = AnsweringModule[dict[str, str], TorchBuild]("stepscope.processes.torch_info")


def ask_process(
    module: AnsweringModule[Asked, Answer],
    asked: Asked,
    environment: Mapping[str, str] | None = None,
    fork_server: ForkServer | None = None,
) -> Answer:
    """Start a process that answers one question, and return its answer.

    It is forked if a fork server is given, unless it needs another environment: torch reads some
    variables when it is imported.

    Raises:
        StepscopeError: the error of the process, or that it was killed.
    """
    with tempfile.TemporaryFile() as request:
        request.write(json.dumps(asked).encode())
        request.seek(0)
        process = _start(module.name, request, environment, None if environment else fork_server)
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
            f"{module.name} ended with {code} and no word: it was killed, or there was no "
            "memory for the network. Choose a smaller one, or free some memory."
        )
    answer = json.loads(output)
    if "error" in answer:
        raise error_of(answer["exit_code"], answer["error"])
    typed: Answer = answer
    return typed


def _start(
    module: str,
    request: IO[bytes],
    environment: Mapping[str, str] | None,
    fork_server: ForkServer | None,
) -> ChildProcess:
    # A file in the working directory that is called like a library must not be taken for it.
    environment = {**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})}
    if fork_server is not None:
        forked = fork_server.fork(module, [], environment, stdin=request.fileno(), stderr=2)
        if forked is not None:
            return forked
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=request, stdout=subprocess.PIPE, env=environment
    )


def forecast(spec: RunSpec, fork_server: ForkServer | None = None) -> MemoryAnswer:
    """Return the memory bill of a run, with its phases and what would lower it.

    Raises:
        StepscopeError: the run is invalid, or no forecast is possible.
    """
    preflight.check(spec)
    answer = ask_process(FORECAST, spec.model_dump(mode="json"), fork_server=fork_server)
    if "items" not in answer:
        raise AnswerIsNo(f"no forecast: {answer['reason']}.")
    return answer

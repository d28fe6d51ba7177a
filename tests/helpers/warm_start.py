"""What tests start is forked from a process that has torch imported, one for each test process.

Where starting Python itself is what is tested, there are `cold_start` and the fixture `cold`, and
for the command as a process of its own `Stepscope.as_process`.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any
from unittest import mock

from stepscope.experiments import script_trial
from stepscope.supervisor import ask_process, script_child, train_child
from stepscope.supervisor.memory_guard import MemoryLimit
from stepscope.supervisor.warm_start import ChildProcess, ForkedProcess, ForkServer

# What Python, the linker and torch look at when they start: it cannot be changed afterwards.
_READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "MALLOC_", "TORCH", "CUDA")
_TESTS = str(Path(__file__).parent)
_AUTOSTART = str(script_child._AUTOSTART)

_fork = ForkServer.fork
_start_training = train_child.start_in_session
_trace = script_child.TracedScript.start
_try_script = script_trial.ScriptTrial.start


class _Warm:
    """The process of this test process, started when it is first needed."""

    server: ForkServer | None = None
    environment: dict[str, str] | None = None

    def fork(
        self, module: str, arguments: list[str], environment: Mapping[str, str], **options: Any
    ) -> ForkedProcess | None:
        wanted = _at_start(environment)
        if self.server is None or self.server.reason is not None:
            self.server, self.environment = ForkServer(), _at_start(os.environ)
            self.server._start({**os.environ, "PYTHONPATH": _TESTS})
            atexit.register(self.server.close)
        if wanted != self.environment:
            return None
        return _fork(self.server, module, arguments, environment, **options)


_WARM = _Warm()


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    usual = {"PYTHONSAFEPATH", "PYTHONUNBUFFERED"}
    # What Ray and torch set for good in a test process that has joined a cluster, or compiled.
    usual |= {"PYTHONBREAKPOINT", "TORCHINDUCTOR_CACHE_DIR"}
    looked_at = {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name not in usual
    }
    path = [each for each in looked_at.pop("PYTHONPATH", "").split(os.pathsep) if each]
    return {**looked_at, "PYTHONPATH": str([each for each in path if each != _AUTOSTART])}


def warm_start() -> AbstractContextManager[None]:
    """Fork what would be started: trainings, questions to them, and users' scripts."""
    return _starting(_server_fork, _started_training, _WarmQuestions, _traced, _tried_script)


def cold_start() -> AbstractContextManager[None]:
    """Start everything as a user's command does."""
    return _starting(_fork, _start_training, subprocess, _trace, _try_script)


@contextmanager
def _starting(fork: Any, start: Any, ask: Any, trace: Any, try_script: Any) -> Iterator[None]:
    with (
        mock.patch.object(ForkServer, "fork", fork),
        mock.patch.object(train_child, "start_in_session", start),
        mock.patch.object(ask_process, "subprocess", ask),
        mock.patch.object(script_child.TracedScript, "start", trace),
        mock.patch.object(script_trial.ScriptTrial, "start", try_script),
    ):
        yield


def _server_fork(
    server: ForkServer,
    module: str,
    arguments: list[str],
    environment: Mapping[str, str],
    **options: Any,
) -> ForkedProcess | None:
    return _WARM.fork(module, arguments, environment, **options)


def _started_training(
    command: list[str], messages: int, limit: MemoryLimit | None, environment: Mapping[str, str]
) -> ChildProcess:
    _, _, module, *arguments = command
    group = None if limit is None or limit.group is None else limit.group.folder
    forked = _WARM.fork(module, arguments, environment, pass_fds=[messages], cgroup=group)
    return forked or _start_training(command, messages, limit, environment)


class _WarmQuestions:
    """Stands for the module `subprocess` where a process is asked a question."""

    PIPE = subprocess.PIPE

    @staticmethod
    def Popen(  # noqa: N802
        command: list[str], *, stdin: IO[bytes], env: Mapping[str, str], **options: Any
    ) -> ChildProcess:
        forked = _WARM.fork(command[-1], [], env, stdin=stdin.fileno(), stderr=2)
        return forked or subprocess.Popen(command, stdin=stdin, env=env, **options)


def _traced(script: script_child.TracedScript, messages: int, origin_ns: int) -> ChildProcess:
    environment = script_child.environment_for(script.request, script.path, messages, origin_ns)
    stdout = 2 if script.output_to_stderr else 1
    forked = _fork_script(script.request, environment, messages, stdout, 2)
    return forked or _trace(script, messages, origin_ns)


def _tried_script(trial: script_trial.ScriptTrial, messages: int, origin_ns: int) -> ChildProcess:
    options = {"is_trial": True, "through_prefetch": trial.through_prefetch}
    environment = script_child.environment_for(
        trial.request, trial.path, messages, origin_ns, **options
    )
    forked = None
    if trial.memory_limit is None or trial.memory_limit.group is None:
        with (trial.path / script_trial.OUTPUT).open("wb") as output:
            streams = (output.fileno(), output.fileno())
            forked = _fork_script(trial.request, environment, messages, *streams)
    return forked or _try_script(trial, messages, origin_ns)


def _fork_script(
    request: script_child.TraceRequest, environment: dict[str, str], messages: int, *streams: int
) -> ForkedProcess | None:
    """Run a script as `python` would, but for what it finds imported (`warm_script`)."""
    own = [os.dup(stream) for stream in streams]
    try:
        for each in own:
            os.set_inheritable(each, True)
        arguments = [*map(str, own), _TESTS, *request.command]
        return _WARM.fork("warm_script", arguments, environment, stdin=0, pass_fds=[messages, *own])
    finally:
        for each in own:
            os.close(each)

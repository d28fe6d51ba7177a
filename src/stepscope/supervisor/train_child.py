"""The training process as its supervisor sees it: started, stopped, and how it ended.

It runs in its own session, so only the parent receives the terminal's signals: the first Ctrl-C,
SIGTERM or SIGHUP asks the training to stop between two steps, the second kills it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import IO

from stepscope.errors import limit_reached
from stepscope.processes.training_process import ProcessOptions
from stepscope.records import schema
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import MemoryForecast, TrainingResult
from stepscope.settings.load_settings import as_flags
from stepscope.supervisor.child_supervisor import ChildWatch, Outcome, SupervisedProcess
from stepscope.supervisor.memory_guard import MemoryLimit
from stepscope.supervisor.warm_start import ChildProcess, ForkServer
from stepscope.units import format_bytes

CUT_OFF = Outcome(schema.INTERRUPTED, "stopped before a checkpoint could be written", 130)
_MODULE = "stepscope.processes.training_process"
# PYTHONSAFEPATH: a file in the working directory must not hide a library.
PYTHON_VARIABLES = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, kw_only=True)
class TrainingProcess(SupervisedProcess):
    """The training of a folder's settings in one process, forked if a fork server is given."""

    folder: RunFolder
    options: ProcessOptions = field(default_factory=ProcessOptions)
    fork_server: ForkServer | None = None

    def start(self, messages: int, origin_ns: int) -> ChildProcess:
        """Start it in its own session."""
        path, parent = self.folder.path.resolve(), os.getpid()
        arguments = [*map(str, (path, messages, parent, origin_ns)), self.options.to_json()]
        environment = {**os.environ, **PYTHON_VARIABLES}
        if self.fork_server is not None:
            limit = self.memory_limit
            group = None if limit is None or limit.group is None else limit.group.folder
            forked = self.fork_server.fork(
                _MODULE, arguments, environment, pass_fds=[messages], cgroup=group
            )
            if forked is not None:
                return forked
        command = [sys.executable, "-m", _MODULE, *arguments]
        return start_in_session(command, messages, self.memory_limit, environment)

    def outcome(self, watch: ChildWatch, returncode: int) -> Outcome:
        """Return how it ended."""
        return training_outcome(watch, returncode)


def start_in_session(
    command: list[str],
    messages: int,
    limit: MemoryLimit | None,
    environment: Mapping[str, str],
    output: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, in a control group if one enforces the limit."""
    if limit is not None and limit.group is not None:
        command = limit.group.command(command)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[messages],
        start_new_session=True,
        env=environment,
    )


def training_outcome(watch: ChildWatch, returncode: int) -> Outcome:
    """Return how a training ended: as it reported, or else by its exit status."""
    reported, failure = watch.outcome, watch.recording_error
    result: TrainingResult
    if watch.stopped_because is not None:
        result = {} if reported is None else reported.result
        return Outcome(schema.FAILED, watch.stopped_because, 1, result=result)
    if _ended_by_guard(watch):
        reason = watch.memory.what_happened()
        if reported is not None and reported.status == schema.OUT_OF_MEMORY:
            reason += "; it ended between two steps, with a checkpoint"
        return _out_of_memory(watch, reason)
    if failure is not None and (reported is None or reported.exit_code in (0, 130)):
        result = {}
        if reported is not None:
            result["instrument"] = reported.result.get("instrument", {})
        return Outcome(schema.FAILED, str(failure), failure.exit_code, result=result)
    if reported is not None and reported.status == schema.OUT_OF_MEMORY:
        return _out_of_memory(watch, reported.reason or "out of memory")
    if reported is not None:
        return reported
    if watch.signals.stops:
        return replace(CUT_OFF)
    if returncode == -signal.SIGKILL and watch.memory.kernel_killed():
        reason = "the kernel killed the training: out of memory"
        limit = watch.memory.limit
        if limit is not None and limit.group is not None:
            reason += f", at its limit of {format_bytes(limit.limit_bytes)}"
        return _out_of_memory(watch, reason)
    last = " / ".join(watch.last_output) or "no output"
    if (reached := limit_reached(last)) is not None:  # a library ended the process
        status = schema.OUT_OF_MEMORY if reached.exit_code == 4 else schema.FAILED
        return Outcome(status, str(reached), reached.exit_code)
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return Outcome(schema.FAILED, f"{name}, not sent by stepscope, ended the training")
    return Outcome(schema.FAILED, f"the training process exited without reporting a result: {last}")


def _out_of_memory(watch: ChildWatch, what_happened: str) -> Outcome:
    """Return the outcome of a training that ran out of memory, with the figures it reported."""
    return replace(
        watch.outcome or Outcome(),
        status=schema.OUT_OF_MEMORY,
        reason=f"{what_happened.rstrip('.')}. {what_would_help(watch.forecast)}",
        exit_code=4,
        traceback=None,
    )


def _ended_by_guard(watch: ChildWatch) -> bool:
    """Return whether the memory guard ended the training before it was done."""
    reported, memory = watch.outcome, watch.memory
    if memory.killed:
        return reported is None or reported.exit_code != 0
    if reported is None:
        return memory.stop_requested and not watch.signals.stops
    return memory.stop_requested and reported.status == schema.OUT_OF_MEMORY


def what_would_help(forecast: MemoryForecast | None) -> str:
    """Name the settings that were forecast to take less, each with its forecast."""
    known = (forecast or {}).get("remedies")
    if not known:
        return "Try a smaller --batch-size or fewer --workers."
    fitting, too_large = (
        ", ".join(
            f"{as_flags(remedy['settings'])} ({format_bytes(remedy['pool_bytes'])})"
            for remedy in known
            if remedy["fits"] == fits
        )
        for fits in (True, False)
    )
    if not fitting:
        on_device = known[0]["pool"] == "device"
        room = "a device with more memory" if on_device else "a larger --memory-limit"
        return (
            f"By forecast, these do not fit either: {too_large}. Use {room} or a smaller network."
        )
    more = f"; not enough alone: {too_large}" if too_large else ""
    return f"Settings forecast to fit: {fitting}{more}."

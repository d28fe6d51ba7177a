"""Run a user's script as `python` would, under supervision: `stepscope trace`.

The script shares the terminal and the process group of its parent, so Ctrl-C, Ctrl-Z, input and
output work as without stepscope. Its exit code becomes ours.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from stepscope import trace as trace_package
from stepscope.errors import RequestError
from stepscope.records import run_folder, schema
from stepscope.records.types import LoaderArguments, ScriptTraceRequest
from stepscope.supervisor.child_supervisor import (
    ChildWatch,
    Outcome,
    SupervisedProcess,
    stop_signals,
)
from stepscope.supervisor.rank_merge import GrowingTables
from stepscope.supervisor.rank_processes import RankInfo, find_rank
from stepscope.supervisor.run_lifecycle import run_to_end
from stepscope.supervisor.torchrun import answer_for_all
from stepscope.supervisor.warm_start import ChildProcess

_AUTOSTART = Path(trace_package.__path__[0]).resolve() / "autostart"
_SECRET_WORDS = ("key", "token", "secret", "password", "passwd", "credential")
NO_STEP = (
    "the script ended, and no training step was seen in it: no step of a torch optimiser in its "
    "main thread. Training in another thread, or in a process that it starts, is not watched."
)
END_NOT_SEEN = (
    "the script ended, and its end was not seen: it became another program (exec), was ended by a "
    "library, or closed all files. What was recorded until then is kept."
)


@dataclass(frozen=True)
class TraceRequest:
    """The script to trace; `loader` overrides arguments of the DataLoaders that it makes."""

    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    out: str = "runs"
    name: str | None = None
    max_steps: int | None = None
    layers: int = 0
    loader: dict[str, Any] | None = None
    energy: str = "auto"

    @property
    def run_name(self) -> str:
        """The name asked for, or the script's."""
        return self.name or self.module or Path(self.script or "script").resolve().stem

    @property
    def target(self) -> list[str]:
        """The script or module, as arguments of `python`."""
        return [str(self.script)] if self.module is None else ["-m", self.module]

    @property
    def command(self) -> list[str]:
        """All arguments of `python`."""
        return [*self.target, *self.arguments]


class _Quiet:
    """The script has the terminal to itself."""

    def message(self, message: dict[str, Any]) -> None:
        """Show nothing."""

    def output(self, line: str) -> None:
        """Show a warning of ours: the script's own output does not go through us."""
        with contextlib.suppress(OSError):  # nobody may be there to read it
            print(line, file=sys.stderr)

    def stopping(self) -> None:
        """Show nothing."""


def trace(request: TraceRequest, *, output_to_stderr: bool) -> tuple[Path, Outcome]:
    """Trace a script; return its run folder and how it ended."""
    check_script(request)
    spec = spec_of(request)
    place = find_rank()
    if place is None:
        made = run_folder.create(Path(request.out), request.run_name, "trace", spec)
        return made.path, _watch(made, request, output_to_stderr)
    return _trace_rank(place, request, spec, output_to_stderr)


def spec_of(request: TraceRequest) -> dict[str, Any]:
    """Return the request as `run.json` records it."""
    return {
        **asdict(request),
        "arguments": hide_secrets(request.arguments),
        "directory": str(Path.cwd()),
    }


def _watch(
    made: run_folder.RunFolder,
    request: TraceRequest,
    output_to_stderr: bool,
    tables: GrowingTables | None = None,
) -> Outcome:
    start = functools.partial(_start, request, made.path.resolve(), output_to_stderr)
    supervised = SupervisedProcess(start, _pass_on, judge_script, own_session=False)
    if tables is not None:
        supervised = replace(supervised, meanwhile=tables.look)
    return run_to_end(made, supervised, _Quiet())


def _trace_rank(
    place: RankInfo,
    request: TraceRequest,
    spec: dict[str, Any],
    output_to_stderr: bool,
) -> tuple[Path, Outcome]:
    """Trace one rank; rank 0 also closes the run as a whole."""
    out = Path(request.out)
    name = request.run_name
    top = place.find_run(out, lambda: run_folder.create(out, name, "trace", spec).path)
    made = run_folder.create_rank(top, place.rank, "trace", {**spec, "rank": place.rank})
    tables = GrowingTables(top, place.world) if place.rank == 0 else None
    with stop_signals(pausing=False) as signals:
        outcome = _watch(made, request, output_to_stderr, tables)
        if place.rank != 0:
            return made.path, outcome
        try:
            answer_for_all(place, top, made.path, outcome, signals)
        finally:
            place.forget(out)
    return top, outcome


def check_script(request: TraceRequest) -> None:
    """Raise if the script does not exist or cannot be read.

    Raises:
        RequestError: it cannot be found or read.
    """
    if request.module is not None:
        return
    script = Path(request.script or "")
    if not script.exists():
        raise RequestError(
            f"no such script: {request.script}. Give the path of a Python file, or -m MODULE."
        )
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise RequestError(f"{request.script} is a directory without a __main__.py.")
    if not os.access(script, os.R_OK):
        raise RequestError(f"cannot read {request.script}: permission denied.")


def hide_secrets(arguments: tuple[str, ...]) -> list[str]:
    """Return the arguments with the values of secrets replaced by `***`."""
    hidden, hide_next = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = argument.startswith("-") and any(w in name.lower() for w in _SECRET_WORDS)
        if hide_next and not argument.startswith("-"):
            hidden.append("***")
        else:
            hidden.append(f"{name}=***" if secret and equals else argument)
        hide_next = secret and not equals
    return hidden


def _start(
    request: TraceRequest, path: Path, output_to_stderr: bool, messages: int, origin_ns: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *request.command],
        stdout=2 if output_to_stderr else None,
        pass_fds=[messages],
        env=environment_for(request, path, messages, origin_ns),
    )


def environment_for(
    request: TraceRequest,
    path: Path,
    messages: int,
    origin_ns: int,
    *,
    is_trial: bool = False,
    through_prefetch: bool = False,
) -> dict[str, str]:
    """Return the environment that makes Python load `trace.bootstrap` before the script."""
    asked: ScriptTraceRequest = {
        "folder": str(path),
        "messages": messages,
        "parent": os.getpid(),
        "origin_ns": origin_ns,
        "max_steps": request.max_steps,
        "layers": request.layers,
        "loader": cast(LoaderArguments, request.loader or {}),
        "is_trial": is_trial,
        "through_prefetch": through_prefetch,
    }
    python_path = [str(_AUTOSTART), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(python_path),
        "STEPSCOPE_TRACE": json.dumps(asked),
    }


def _pass_on(child: ChildProcess, number: int, before: int) -> None:
    """Forward a signal to the script, unless the terminal has already sent it."""
    if number == signal.SIGINT and _in_foreground():
        return
    child.send_signal(number)


def _in_foreground() -> bool:
    """Return whether a Ctrl-C at the terminal reaches this process and its children."""
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def judge_script(watch: ChildWatch, returncode: int) -> Outcome:
    """Return how the script ended, with its own exit code."""
    words = watch.last_words
    raised = words.get("raised")
    outcome = _judge_code(watch, returncode, raised)
    outcome.instrument = words.get("instrument") or {}
    outcome.layers = words.get("layers")
    outcome.absent = words.get("absent") or {}
    outcome.traceback = words.get("traceback")
    trouble = watch.trouble or words.get("trouble")
    if trouble is not None and outcome.exit_code == 0:
        code = watch.trouble.exit_code if watch.trouble else int(words["exit_code"])
        reason = f"the script ended well, but it could not be watched to its end: {trouble}"
        outcome.status, outcome.reason, outcome.exit_code = schema.FAILED, reason, code
    elif outcome.exit_code == 0 and not words:
        outcome.reason, outcome.exit_code = END_NOT_SEEN, 1
    elif outcome.exit_code == 0 and not words.get("steps"):
        outcome.reason, outcome.exit_code = NO_STEP, 1
    return outcome


def _judge_code(watch: ChildWatch, returncode: int, raised: str | None) -> Outcome:
    if returncode == 0:
        return Outcome(schema.COMPLETED, None, 0)
    stopped = watch.signals.stops > 0
    if returncode == -signal.SIGINT or (raised or "").startswith("KeyboardInterrupt"):
        return Outcome(schema.INTERRUPTED, "the script was interrupted", 130)
    if returncode < 0:
        if stopped:
            return Outcome(schema.INTERRUPTED, "the script was told to stop", 130)
        if returncode == -signal.SIGKILL and watch.memory.kernel_killed():
            reason = "the kernel killed the script for want of memory"
            return Outcome(schema.OUT_OF_MEMORY, reason, 4)
        name = signal.Signals(-returncode).name
        return Outcome(schema.FAILED, f"the script was ended by {name}", 128 - returncode)
    if stopped and returncode in (130, 143):
        return Outcome(schema.INTERRUPTED, "the script was told to stop", 130)
    if raised is not None and (
        any(word in raised for word in _OUT_OF_MEMORY)
        or ("DataLoader worker" in raised and watch.memory.kernel_killed())
    ):
        return Outcome(schema.OUT_OF_MEMORY, raised, returncode)
    reason = f"the script ended with exit code {returncode}"
    return Outcome(schema.FAILED, raised or reason, returncode)


_OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "MemoryError",
    "can't allocate memory",
    "out of memory",
    "out of shared memory",
)

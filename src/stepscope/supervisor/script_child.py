"""Run a user's script as `python` would, under supervision: `stepscope trace`.

The script shares the terminal and the process group of its parent, so Ctrl-C, Ctrl-Z, input and
output work as without stepscope.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from stepscope import trace as trace_package
from stepscope.errors import RequestError, is_out_of_memory
from stepscope.hardware.process import find_rank
from stepscope.records import run_folder, schema
from stepscope.records.types import (
    LoaderArguments,
    RecordedSpec,
    ScriptTraceRequest,
    TraceOutcome,
)
from stepscope.supervisor.child_supervisor import (
    ChildWatch,
    Outcome,
    SilentListener,
    SupervisedProcess,
)
from stepscope.supervisor.run_lifecycle import run_to_end
from stepscope.supervisor.warm_start import ChildProcess

_AUTOSTART = Path(trace_package.__path__[0]).resolve() / "autostart"
_SECRET_WORDS = ("key", "token", "secret", "password", "passwd", "credential")
NO_STEP = (
    "the script ended without a training step: in its main thread no torch optimiser stepped, and "
    "no weights changed after a backward pass. Training in other threads or processes is not "
    "traced."
)
END_NOT_SEEN = (
    "the end of the script was not seen: it called exec, a library ended it, or it closed all "
    "files. The recording up to then is kept."
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
    loader: LoaderArguments | None = None
    energy: str = "auto"
    hang_after_s: float = 0.0  # 0: hangs are not looked for
    on_hang: str = "warn"

    @property
    def run_name(self) -> str:
        """The name given, or the script's."""
        return self.name or self.module or Path(self.script or "script").resolve().stem

    @property
    def target(self) -> list[str]:
        """The script or module, as arguments of `python`."""
        return [str(self.script)] if self.module is None else ["-m", self.module]

    @property
    def command(self) -> list[str]:
        """All arguments of `python`."""
        return [*self.target, *self.arguments]


class ScriptListener(SilentListener):
    """Shows our warnings only: the script writes to the terminal itself."""

    def output(self, line: str) -> None:
        """Show a warning."""
        with contextlib.suppress(OSError):  # standard error may be closed
            print(line, file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class TracedScript(SupervisedProcess):
    """A user's script in our session, on our terminal."""

    request: TraceRequest
    path: Path
    output_to_stderr: bool
    own_session: bool = False

    def start(self, messages: int, origin_ns: int) -> ChildProcess:
        """Start it with the hooks in its environment."""
        return subprocess.Popen(
            [sys.executable, *self.request.command],
            stdout=2 if self.output_to_stderr else None,
            pass_fds=[messages],
            env=environment_for(self.request, self.path, messages, origin_ns),
        )

    def stop(self, child: ChildProcess, number: int, before: int) -> None:
        """Forward a signal, unless the terminal has already sent it."""
        if number != signal.SIGINT or not _in_foreground():
            child.send_signal(number)

    def outcome(self, watch: ChildWatch, returncode: int) -> Outcome:
        """Return how it ended, with its own exit code."""
        return script_outcome(watch, returncode)


def trace(request: TraceRequest, *, output_to_stderr: bool) -> tuple[Path, Outcome]:
    """Trace a script; return its run folder and how it ended."""
    check_script(request)
    spec = spec_of(request)

    def run(made: run_folder.RunFolder, on_sample: Callable[[], None] = lambda: None) -> Outcome:
        script = TracedScript(
            request=request,
            path=made.path.resolve(),
            output_to_stderr=output_to_stderr,
            on_sample=on_sample,
            hang_after_s=request.hang_after_s,
            on_hang=request.on_hang,
        )
        return run_to_end(made, script, ScriptListener())

    rank = find_rank()
    if rank is None:
        made = run_folder.create(Path(request.out), request.run_name, "trace", spec)
        outcome = run(made)
        return made.path, outcome  # it may have been renamed
    from stepscope.supervisor.torchrun import trace_rank

    return trace_rank(rank, Path(request.out), request.run_name, spec, run)


def spec_of(request: TraceRequest) -> RecordedSpec:
    """Return the request as `run.json` records it."""
    return {
        **asdict(request),
        "arguments": hide_secrets(request.arguments),
        "directory": str(Path.cwd()),
    }


def check_script(request: TraceRequest) -> None:
    """Raise RequestError if the script does not exist or cannot be read."""
    if request.module is not None:
        return
    script = Path(request.script or "")
    if not script.exists():
        raise RequestError(
            f"no such script: {request.script}. Give the path of a Python file, or -m MODULE."
        )
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise RequestError(
            f"{request.script} is a folder without a __main__.py. Give the path of a Python file."
        )
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
    options: ScriptTraceRequest = {
        "folder": str(path),
        "messages": messages,
        "parent": os.getpid(),
        "origin_ns": origin_ns,
        "max_steps": request.max_steps,
        "layers": request.layers,
        "loader": request.loader or {},
        "is_trial": is_trial,
        "through_prefetch": through_prefetch,
        "dumps_stacks": request.hang_after_s > 0,
    }
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_AUTOSTART), *filter(None, [before])]),
        **({} if before is None else {"STEPSCOPE_PYTHONPATH": before}),
        "STEPSCOPE_TRACE": json.dumps(options),
    }


def _in_foreground() -> bool:
    """Return whether a Ctrl-C at the terminal reaches this process and its children."""
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def script_outcome(watch: ChildWatch, returncode: int) -> Outcome:
    """Return how the script ended, with its own exit code."""
    state: TraceOutcome = {} if watch.final_state is None else watch.final_state
    outcome = _exit_outcome(watch, returncode)
    outcome.result = {
        "instrument": state.get("instrument", {}),
        "layers": state.get("layers"),
        "flops": state.get("flops"),
        "script": state.get("script", {}),
        "absent": state.get("absent", {}),
    }
    outcome.traceback = state.get("traceback")
    failure = watch.recording_error or state.get("failure")
    if failure is not None and outcome.exit_code == 0:
        error = watch.recording_error
        outcome.status = schema.FAILED
        outcome.reason = f"the script completed, but the recording stopped early: {failure}"
        outcome.exit_code = state["exit_code"] if error is None else error.exit_code
    elif outcome.exit_code == 0 and watch.final_state is None:
        outcome.reason, outcome.exit_code = END_NOT_SEEN, 1
    elif outcome.exit_code == 0 and not state.get("steps"):
        why = state.get("absent", {}).get("phases")
        outcome.reason, outcome.exit_code = f"{NO_STEP} Here {why}." if why else NO_STEP, 1
    return outcome


def _exit_outcome(watch: ChildWatch, returncode: int) -> Outcome:
    raised = watch.raised or ""
    if watch.stopped_because is not None:
        return Outcome(schema.FAILED, watch.stopped_because, 1)
    if returncode == 0:
        return Outcome(schema.COMPLETED, None, 0)
    if returncode == -signal.SIGINT or raised.startswith("KeyboardInterrupt"):
        return Outcome(schema.INTERRUPTED, "the script was interrupted", 130)
    if watch.signals.stops > 0 and (returncode < 0 or returncode in (130, 143)):
        return Outcome(schema.INTERRUPTED, "the script was stopped on request", 130)
    if returncode < 0:
        if returncode == -signal.SIGKILL and watch.memory.kernel_killed():
            return Outcome(schema.OUT_OF_MEMORY, "the kernel killed the script: out of memory", 4)
        name = signal.Signals(-returncode).name
        return Outcome(schema.FAILED, f"{name} ended the script", 128 - returncode)
    if is_out_of_memory(raised) or ("DataLoader worker" in raised and watch.memory.kernel_killed()):
        return Outcome(schema.OUT_OF_MEMORY, raised, returncode)
    reason = f"the script exited with code {returncode}"
    return Outcome(schema.FAILED, raised or reason, returncode)

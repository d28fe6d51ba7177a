"""A user's script as a trial: run for some steps with other settings, without a terminal.

It runs in its own session, so that everything it started can be ended; its output goes to
`output.txt` in its folder. After its steps the process exits at once, without `finally` or
`atexit`, so that no checkpoint of a trial replaces a real one.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.errors import (
    Interrupted,
    MachineError,
    OutOfMemoryError,
    RequestError,
    StepscopeError,
)
from stepscope.experiments.batch_bisection import BatchTrial
from stepscope.experiments.script_loaders import NO_LOADER, training_loader, why_not_set
from stepscope.experiments.trial import temporary_folder, why_not
from stepscope.memory_forecast.memory_bill import Limit
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.types import LoaderArguments, LoaderEvent
from stepscope.supervisor.child_supervisor import (
    ChildWatch,
    Outcome,
    RunListener,
    SilentListener,
    SupervisedProcess,
)
from stepscope.supervisor.memory_guard import holding
from stepscope.supervisor.run_lifecycle import run_to_end
from stepscope.supervisor.script_child import (
    END_NOT_SEEN,
    NO_STEP,
    TraceRequest,
    check_script,
    environment_for,
    script_outcome,
    spec_of,
)
from stepscope.supervisor.train_child import start_in_session
from stepscope.supervisor.warm_start import ChildProcess

OUTPUT = "output.txt"
_LAST_BYTES = 4096


def run_script(
    request: TraceRequest,
    path: Path,
    listener: RunListener,
    *,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    through_prefetch: bool = False,
) -> Outcome:
    """Run a script up to its `max_steps`, recorded in a new folder at an exact path.

    The trial fails if settings of its loaders could not be set. `through_prefetch` asks for at
    least one step more than its loader workers prefetch.
    """
    check_script(request)
    made = run_folder.create_at(path, request.run_name, "trace", spec_of(request))
    with holding(memory_limit_bytes) as limit:
        supervised = ScriptTrial(
            request=request,
            path=made.path.resolve(),
            through_prefetch=through_prefetch,
            memory_limit=limit,
            time_limit_s=time_limit_s,
        )
        return run_to_end(made, supervised, listener)


@dataclass(frozen=True, kw_only=True)
class ScriptTrial(SupervisedProcess):
    """A user's script in its own session, for some steps."""

    request: TraceRequest
    path: Path
    through_prefetch: bool

    def start(self, messages: int, origin_ns: int) -> ChildProcess:
        """Start it with its output in a file."""
        command = [sys.executable, *self.request.command]
        environment = environment_for(
            self.request,
            self.path,
            messages,
            origin_ns,
            is_trial=True,
            through_prefetch=self.through_prefetch,
        )
        with (self.path / OUTPUT).open("wb") as output:
            return start_in_session(command, messages, self.memory_limit, environment, output)

    def stop(self, child: ChildProcess, number: int, before: int) -> None:
        """Send Ctrl-C's signal, which scripts handle; then kill it."""
        if before > 0:
            child.kill()
        elif signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the script inherited that
            child.terminate()
        else:
            child.send_signal(signal.SIGINT)

    def outcome(self, watch: ChildWatch, returncode: int) -> Outcome:
        """Return how it ended, and whether it ran as requested."""
        outcome = script_outcome(watch, returncode)
        if (outcome.reason or "").startswith(
            (NO_STEP, END_NOT_SEEN)
        ):  # fine for a script, not for a trial
            outcome.status = schema.FAILED
        if watch.signals.stops:  # also if the script then ended well
            outcome.status, outcome.exit_code = schema.INTERRUPTED, Interrupted.exit_code
            outcome.reason = "the script was asked to stop"
        elif outcome.exit_code != 0 and (watch.memory.killed or watch.memory.stop_requested):
            outcome.status, outcome.exit_code = schema.OUT_OF_MEMORY, 4
            outcome.reason = watch.memory.what_happened()
        if outcome.status == schema.FAILED and watch.raised is None:
            outcome.reason = _with_last_line(outcome.reason, watch.folder.path / OUTPUT)
        if outcome.exit_code == 0:
            reason = why_not_set(run_reader.load_run(watch.folder.path), self.request.loader or {})
            if reason is not None:
                outcome.status, outcome.reason = schema.FAILED, reason
                outcome.exit_code = RequestError.exit_code
        return outcome


def with_argument(arguments: Sequence[str], flag: str, value: str) -> list[str]:
    """Return a script's arguments with one of its flags set: `--lr 0.1`, `--lr=0.1`.

    A missing flag is added. `on` and `off` add and remove one without a value; a name without
    dashes is set as `name=value`.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours, rest = list(arguments[:end]), list(arguments[end:])
    if not flag.startswith("-"):
        start = f"{flag}="
        ours += [] if any(word.startswith(start) for word in ours) else [start]
        return [start + value if word.startswith(start) else word for word in ours] + rest
    words: list[str] = []
    found, at = False, 0
    while at < len(ours):
        word, following = ours[at], ours[at + 1 : at + 2]
        at += 1
        if word.startswith(f"{flag}="):
            words.append(f"{flag}={value}")
        elif word != flag:
            words.append(word)
            continue
        elif following and _is_value(following[0], value):
            words += [flag, value]
            at += 1
        elif value not in _SWITCH:
            words += [flag, value]
        elif value == "on":
            words.append(flag)
        found = True
    if not found and value != "off":
        words += [flag] if value == "on" else [flag, value]
    return words + rest


_SWITCH = ("on", "off")


def _is_value(word: str, value: str) -> bool:
    """Return whether the word after a flag is its value; after a switch, only a state is."""
    if value in _SWITCH:
        return word in _SWITCH
    return not word.startswith("-") or word[1:2].isdecimal() or word[1:2] == "."


def _with_last_line(reason: str | None, output: Path) -> str:
    """Add the last line of the script's output, which often says why it ended."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _LAST_BYTES))
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    return f"{reason}: {lines[-1].strip()}" if lines else f"{reason}, and it printed nothing"


# --- Does a script fit with a batch?


_OURS = (MachineError.exit_code, StepscopeError.exit_code)


def try_batch(
    request: TraceRequest, batch: int | None, limit: Limit
) -> tuple[BatchTrial, int | None]:
    """Run a script with a batch, or with its own; return also the samples of its data.

    Raises:
        Interrupted: a stop was requested.
        RequestError: its batch size cannot be set.
        OutOfMemoryError: it ran out of memory before it made a DataLoader.
    """
    loader: LoaderArguments = {} if batch is None else {"batch_size": batch}
    with temporary_folder(Path(request.out)) as out:
        path = Path(out) / "trial"
        outcome = run_script(
            replace(request, loader=loader),
            path,
            SilentListener(),
            memory_limit_bytes=limit.bytes,
            through_prefetch=True,
        )
        if outcome.status == schema.INTERRUPTED:
            raise Interrupted("interrupted")
        run = run_reader.load_run(path)
        made = training_loader(run)
        own_batch = _own_batch(made, outcome) if batch is None else batch
        status, reason, exit_code = outcome.status, outcome.reason, outcome.exit_code
        if status == schema.COMPLETED and exit_code == 0:
            reason = why_not(run, limit, outcome.peak_memory_bytes)
        elif status != schema.OUT_OF_MEMORY:
            status, exit_code = schema.FAILED, exit_code if exit_code in _OURS else 2
        trial = BatchTrial(
            own_batch,
            status == schema.COMPLETED and reason is None,
            outcome.peak_memory_bytes,
            status=status,
            reason=reason,
            exit_code=exit_code,
        )
        return trial, made["samples"] if made else None


def _own_batch(loader: LoaderEvent | None, outcome: Outcome) -> int:
    """Return the script's own batch size, at most its samples."""
    if loader is None:
        if outcome.status == schema.OUT_OF_MEMORY:
            raise OutOfMemoryError(f"{outcome.reason}, before the script made a DataLoader")
        raise RequestError(outcome.reason or NO_LOADER)
    if loader["batches_by"] != "loader":
        raise RequestError(
            "the batch size cannot be set in the script's DataLoader: its "
            f"{loader['batches_by']} makes the batches."
        )
    batch = loader["found"]["batch_size"]
    assert batch is not None, "the loader makes the batches"
    return batch if loader["samples"] is None else min(batch, loader["samples"])

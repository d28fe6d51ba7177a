"""The training process as its supervisor sees it: started, stopped, and how it ended.

It runs in its own session, so only the parent receives the terminal's signals: the first Ctrl-C,
SIGTERM or SIGHUP asks the training to stop between two steps, the second kills it.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from stepscope.processes.process_options import ProcessOptions
from stepscope.records import schema
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import MemoryForecast, RemedyRecord
from stepscope.settings.load_settings import as_flags
from stepscope.supervisor.child_supervisor import ChildWatch, Outcome, SupervisedProcess
from stepscope.supervisor.memory_guard import MemoryLimit
from stepscope.supervisor.warm_start import ChildProcess, ForkServer
from stepscope.units import format_bytes


def what_would_help(forecast: MemoryForecast | None) -> str:
    """Name the settings that were forecast to take less, each with its forecast."""
    known = forecast.get("remedies") if forecast else None
    if not known:
        return "Try a smaller --batch-size or fewer --workers."
    if not any(remedy["fits"] for remedy in known):
        return (
            "None of these would fit either, by forecast: "
            + ", ".join(map(_remedy, known))
            + f". {_more_room(known[0]['pool'])} is needed, or a smaller network."
        )
    enough = ", ".join(_remedy(remedy) for remedy in known if remedy["fits"])
    too_little = ", ".join(_remedy(remedy) for remedy in known if not remedy["fits"])
    more = f"; not enough by itself: {too_little}" if too_little else ""
    return f"What would help, by forecast: {enough}{more}."


def _remedy(remedy: RemedyRecord) -> str:
    return f"{as_flags(remedy['settings'])} ({format_bytes(remedy['pool_bytes'])})"


def _more_room(pool: str) -> str:
    return "A device with more memory" if pool == "device" else "A larger --memory-limit"


_MODULE = "stepscope.processes.training_process"


def training_process_of(
    folder: RunFolder,
    limit: MemoryLimit | None,
    *,
    has_workers: bool,
    options: ProcessOptions | None = None,
    time_limit_s: float | None = None,
    fork_server: ForkServer | None = None,
) -> SupervisedProcess:
    """Return the training of a folder's settings; it is forked where a fork server is given."""
    return SupervisedProcess(
        functools.partial(_start, folder, limit, options or ProcessOptions(), fork_server),
        end_training,
        judge_training,
        has_workers=has_workers,
        memory_limit=limit,
        time_limit_s=time_limit_s,
    )


def _start(
    folder: RunFolder,
    limit: MemoryLimit | None,
    options: ProcessOptions,
    fork_server: ForkServer | None,
    messages: int,
    origin_ns: int,
) -> ChildProcess:
    arguments = [str(folder.path.resolve())]
    for name, value in {
        "--messages": messages,
        "--parent": os.getpid(),
        "--origin-ns": origin_ns,
    }.items():
        arguments += [name, str(value)]
    arguments += options.switches()
    if fork_server is not None:
        group = None if limit is None or limit.group is None else limit.group.folder
        environment = _environment(os.environ)
        forked = fork_server.fork(
            _MODULE, arguments, environment, pass_fds=[messages], cgroup=group
        )
        if forked is not None:
            return forked
    command = [sys.executable, "-m", _MODULE, *arguments]
    return start_training(command, messages, limit, os.environ)


def start_training(
    command: list[str], messages: int, limit: MemoryLimit | None, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, in a control group where one enforces the limit."""
    if limit is not None and limit.group is not None:
        command = limit.group.command(command)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[messages],
        start_new_session=True,
        env=_environment(environment),
    )


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    # A file in the working directory that is called like a library must not be taken for it.
    return {**environment, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def end_training(child: ChildProcess, number: int, before: int) -> None:
    """Ask a training to stop between two steps; kill it the second time."""
    if before == 0:
        child.terminate()
    else:
        child.kill()


def judge_training(watch: ChildWatch, returncode: int) -> Outcome:
    """Return how the training ended: as it reported, or else by its exit status."""
    said = watch.outcome
    if _ended_by_guard(watch):
        verdict = out_of_memory(watch, _guard_words(watch))
    elif watch.trouble is not None and (said is None or said.exit_code in (0, 130)):
        verdict = Outcome(schema.FAILED, str(watch.trouble), watch.trouble.exit_code)
        verdict.instrument = said.instrument if said else {}
    elif said is not None and said.status == schema.OUT_OF_MEMORY:
        verdict = out_of_memory(watch, said.reason or "out of memory")
    elif said is not None:
        verdict = said
    elif watch.signals.stops:
        verdict = Outcome(schema.INTERRUPTED, "stopped before the training could save", 130)
    elif returncode == -signal.SIGKILL and watch.memory.kernel_killed():
        verdict = out_of_memory(watch, _killed_by_kernel(watch))
    elif returncode < 0:
        name = signal.Signals(-returncode).name
        reason = f"the training was ended by {name}, which stepscope did not send"
        verdict = Outcome(schema.FAILED, reason)
    else:
        last = " / ".join(watch.last_output) or "it printed nothing"
        verdict = Outcome(schema.FAILED, f"the training ended without a word: {last}")
    verdict.preparation_s = watch.ready.get("preparation_s")
    return verdict


def out_of_memory(watch: ChildWatch, what_happened: str) -> Outcome:
    """Return the outcome of a training that ran out of memory, with the figures it reported."""
    said = watch.outcome or Outcome()
    return Outcome(
        schema.OUT_OF_MEMORY,
        f"{what_happened.rstrip('.')}. {what_would_help(watch.forecast)}",
        4,
        instrument=said.instrument,
        layers=said.layers,
        flops=said.flops,
        counters=said.counters,
        absent=said.absent,
        measured_bytes=said.measured_bytes,
        device_memory=said.device_memory,
        requests=said.requests,
    )


def _ended_by_guard(watch: ChildWatch) -> bool:
    """Return whether the memory guard ended the training before it was done."""
    said, memory = watch.outcome, watch.memory
    if memory.killed:
        return said is None or said.exit_code != 0
    if said is None:
        return memory.asked and not watch.signals.stops
    return memory.asked and said.status == schema.OUT_OF_MEMORY


def _guard_words(watch: ChildWatch) -> str:
    words = watch.memory.what_happened()
    if watch.outcome is not None and watch.outcome.status == schema.OUT_OF_MEMORY:
        return f"{words}; it ended between two steps, with a checkpoint"
    return words


def _killed_by_kernel(watch: ChildWatch) -> str:
    said = "the kernel killed the training for want of memory"
    limit = watch.memory.limit
    if limit is None or limit.group is None:
        return said
    return f"{said}, at its limit of {format_bytes(limit.limit_bytes)}"

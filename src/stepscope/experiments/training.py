"""Our own training as what is supervised.

It runs in a session of its own, so that only the parent hears the terminal: the first Ctrl-C,
SIGTERM or SIGHUP asks the training to stop between two steps, the second ends it at once.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys

from stepscope.experiments.supervise import Charge, Outcome, Watch, kernel_killed
from stepscope.records import schema
from stepscope.records.folder import RunFolder
from stepscope.units import format_bytes


def training_of(folder: RunFolder) -> Charge:
    """Return the training that a folder asks for."""
    return Charge(functools.partial(_start, folder), _stop, _judge)


def _start(folder: RunFolder, messages: int, origin_ns: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stepscope.train.child", str(folder.path.resolve())]
    options = {"--messages": messages, "--parent": os.getpid(), "--origin-ns": origin_ns}
    for name, value in options.items():
        command += [name, str(value)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[messages],
        start_new_session=True,
        # A file in the working directory that is called like a library must not be taken for it.
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
    )


def _stop(child: subprocess.Popen[bytes], number: int, before: int) -> None:
    if before == 0:
        child.terminate()
    else:
        child.kill()


def _judge(watch: Watch, returncode: int, kills_before: int | None) -> Outcome:
    """Decide how the training ended, from its own words or, without any, from how it died."""
    said = watch.outcome
    if watch.over_limit_bytes is not None:
        limit = format_bytes(watch.memory_limit_bytes or 0)
        verdict = Outcome(
            schema.OUT_OF_MEMORY,
            f"the run took {format_bytes(watch.over_limit_bytes)}, over its limit of {limit}. "
            "Try a smaller --batch-size or fewer --workers.",
            4,
        )
    elif watch.trouble is not None and (said is None or said.exit_code in (0, 130)):
        verdict = Outcome(schema.FAILED, str(watch.trouble), watch.trouble.exit_code)
        verdict.instrument = said.instrument if said else {}
    elif said is not None and not (_worker_died(said) and kernel_killed(kills_before)):
        verdict = said
    elif watch.signals.stops:
        verdict = Outcome(schema.INTERRUPTED, "stopped before the training could save", 130)
    elif returncode < 0 or said is not None:
        verdict = _judge_signal(signal.SIGKILL if said else -returncode, kills_before)
    else:
        last = " / ".join(watch.last_output) or "it printed nothing"
        verdict = Outcome(schema.FAILED, f"the training ended without a word: {last}")
    verdict.preparation_s = watch.ready.get("preparation_s")
    return verdict


def _judge_signal(number: int, kills_before: int | None) -> Outcome:
    if number == signal.SIGKILL and kernel_killed(kills_before):
        return Outcome(
            schema.OUT_OF_MEMORY,
            "the kernel killed the training for want of memory. "
            "Try a smaller --batch-size or fewer --workers.",
            4,
        )
    name = signal.Signals(number).name
    return Outcome(schema.FAILED, f"the training was ended by {name}, which stepscope did not send")


def _worker_died(said: Outcome) -> bool:
    return "DataLoader worker (pid" in (said.reason or "")

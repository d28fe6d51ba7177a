"""The light parent of a training: it samples, relays, stops, and learns how the training ended.

It needs no torch. The training runs in a session of its own, so that only the parent hears the
terminal: the first Ctrl-C, SIGTERM or SIGHUP asks the training to stop between two steps, the
second ends it at once. The training cannot outlive the parent (`train.lifetime`).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import psutil

from stepscope.errors import MachineError
from stepscope.hardware import host
from stepscope.measure.clock import now_ns, seconds
from stepscope.measure.telemetry import SAMPLE_EVERY_S, Sampler
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog
from stepscope.records.folder import RunFolder
from stepscope.units import format_bytes

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_OUTPUT_LINES = 5


class Onlooker(Protocol):
    """Somebody who shows how a run goes. Messages are those of `train.child`."""

    def message(self, message: dict[str, Any]) -> None:
        """Take what the training says of itself."""

    def output(self, line: str) -> None:
        """Take a line that the training printed."""

    def stopping(self) -> None:
        """Learn that the training was asked to stop."""


@dataclass
class Outcome:
    """How a training ended, and what it said of itself before."""

    status: str = schema.FAILED
    reason: str | None = None
    exit_code: int = 70
    traceback: str | None = None
    instrument: dict[str, Any] = field(default_factory=dict)
    preparation_s: float | None = None
    wall_s: float = 0.0
    peak_memory_bytes: int | None = None


@dataclass
class StopSignals:
    """Requests to stop, or to pause, that came by signal."""

    stops: int = 0
    obeyed: int = 0
    pauses: int = 0

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Count a request to stop."""
        self.stops += 1

    def pause(self, number: int, frame: FrameType | None) -> None:
        """Count a request to pause (Ctrl-Z)."""
        self.pauses += 1


@contextlib.contextmanager
def listening() -> Iterator[StopSignals]:
    """Take signals as requests, for as long as a folder is open."""
    signals = StopSignals()
    handlers = {**dict.fromkeys(_STOP_SIGNALS, signals.stop), signal.SIGTSTP: signals.pause}
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup means it
    }
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def supervise(
    folder: RunFolder,
    onlooker: Onlooker,
    signals: StopSignals,
    *,
    elapsed_s: float,
    memory_limit_bytes: int | None,
) -> Outcome:
    """Run the training of a folder in a child process and wait for its end.

    `elapsed_s` is how long the run has already lived, before it was resumed.
    """
    origin_ns = now_ns() - round(elapsed_s * 1e9)
    kills_before = host.oom_kills()
    read_end, write_end = os.pipe()
    log = CsvLog(folder.path / schema.TELEMETRY)
    child = _start(folder, write_end, origin_ns)
    try:
        os.close(write_end)
        sampler = Sampler(psutil.Process(child.pid), log, origin_ns)
        watch = _Watch(folder, child, sampler, onlooker, signals, memory_limit_bytes)
        watch.until_end(read_end)
        try:
            log.close()
        except MachineError as error:
            watch.trouble = error
        outcome = _judge(watch, child.wait(), kills_before)
    finally:
        _end(child)
    outcome.wall_s = seconds(now_ns() - origin_ns)
    outcome.peak_memory_bytes = sampler.peak_memory_bytes
    return outcome


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


@dataclass
class _Watch:
    """Everything that goes on between the start of a training and its end."""

    folder: RunFolder
    child: subprocess.Popen[bytes]
    sampler: Sampler
    onlooker: Onlooker
    signals: StopSignals
    memory_limit_bytes: int | None
    outcome: Outcome | None = None
    ready: dict[str, Any] = field(default_factory=dict)
    trouble: MachineError | None = None
    over_limit_bytes: int | None = None
    last_output: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_OUTPUT_LINES))

    def until_end(self, messages: int) -> None:
        """Relay messages and output, sample, pass on requests to stop, until both pipes close."""
        assert self.child.stdout is not None
        with selectors.DefaultSelector() as selector, os.fdopen(messages, "rb") as message_pipe:
            selector.register(message_pipe, selectors.EVENT_READ, _Lines(self._message, False))
            selector.register(self.child.stdout, selectors.EVENT_READ, _Lines(self._output, True))
            next_sample, ended_at = time.monotonic(), None
            while selector.get_map():
                for key, _ in selector.select(timeout=0.1):
                    data = os.read(key.fd, 65536)
                    key.data.take(data)
                    if not data:
                        selector.unregister(key.fileobj)
                self._obey()
                if time.monotonic() >= next_sample:
                    next_sample = time.monotonic() + SAMPLE_EVERY_S
                    self._sample()
                if self.child.poll() is not None:
                    # Whatever it left running may hold the pipes open, and even fill them.
                    ended_at = ended_at or time.monotonic()
                    if time.monotonic() - ended_at > 1 or not selector.select(timeout=0):
                        break

    def _message(self, line: str) -> None:
        message = json.loads(line)
        if message["type"] == "outcome":
            known = {key: value for key, value in message.items() if key in vars(Outcome())}
            self.outcome = Outcome(**known)
        elif message["type"] == "ready":
            self.ready = message
            self._note_what_is_known()
            self.onlooker.message(message)
        else:
            self.onlooker.message(message)

    def _note_what_is_known(self) -> None:
        """Put the resolved spec into `run.json` now, for a run that may be killed later."""
        host_too = {**self.folder.read_info()["environment"], **self.ready["environment"]}
        try:
            self.folder.update_info(spec=self.ready["spec"], environment=host_too)
        except MachineError as error:
            self._give_up(error)

    def _output(self, line: str) -> None:
        self.last_output.append(line)
        self.onlooker.output(line)

    def _obey(self) -> None:
        if self.signals.pauses:
            self._pause()
        if self.signals.stops == self.signals.obeyed:
            return
        first = self.signals.obeyed == 0
        self.signals.obeyed = self.signals.stops
        if first:
            self.child.terminate()
            self.onlooker.stopping()
        else:
            self.child.kill()

    def _give_up(self, error: MachineError) -> None:
        """The disk is full: the training finds out by itself, or is asked to end here."""
        self.trouble = error
        self.child.terminate()

    def _pause(self) -> None:
        """Stop with the whole training, as Ctrl-Z would without us, until somebody goes on."""
        with contextlib.suppress(ProcessLookupError):  # it may just have ended
            os.killpg(self.child.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGCONT)
        self.signals.pauses = 0

    def _sample(self) -> None:
        if self.trouble is not None:
            return
        try:
            reading = self.sampler.sample()
        except MachineError as error:
            self._give_up(error)
            return
        if reading is None or self.memory_limit_bytes is None:
            return
        # Between two readings of proportional sizes the training process alone is looked at.
        used = reading.pss_bytes or reading.rss_bytes + (reading.workers_private_bytes or 0)
        if used > self.memory_limit_bytes:
            self.over_limit_bytes = used
            self.child.kill()
            self.folder.add_event(
                "memory_limit",
                seconds(now_ns() - self.sampler.origin_ns),
                used_bytes=used,
                limit_bytes=self.memory_limit_bytes,
            )


def _judge(watch: _Watch, returncode: int, kills_before: int | None) -> Outcome:
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
    elif said is not None and not (_worker_died(said) and _kernel_killed(kills_before)):
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
    if number == signal.SIGKILL and _kernel_killed(kills_before):
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


def _kernel_killed(kills_before: int | None) -> bool:
    """Say whether the kernel has killed anything for want of memory since the run began."""
    kills_now = host.oom_kills()
    return kills_now is not None and kills_now != kills_before


class _Lines:
    """Put bytes together to lines and hand each one on."""

    def __init__(self, handle: Callable[[str], None], last_may_lack_end: bool) -> None:
        self._handle = handle
        self._last_may_lack_end = last_may_lack_end
        self._rest = b""

    def take(self, data: bytes) -> None:
        """Take some bytes; none of them means that the pipe has closed."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest and self._last_may_lack_end:
            lines.append(self._rest)
        for line in lines:
            self._handle(line.decode("utf-8", errors="replace"))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave nothing of the training behind, however the parent's part ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # it leads a session of its own
    child.wait()
    if child.stdout is not None:
        child.stdout.close()

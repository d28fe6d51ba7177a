"""Supervise a child process: sample it, forward its messages and signals, record how it ends.

The supervisor imports no torch. A `SupervisedProcess` is our own training (`train_child`) or a
user's script (`script_child`). Neither can outlive the parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import psutil

from stepscope.errors import MachineError
from stepscope.hardware.procfs import system_root
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import (
    LayerTime,
    MemoryForecast,
    PhaseCounters,
    RequestLatency,
    StepFlops,
)
from stepscope.supervisor.memory_guard import MemoryLimit, MemoryWatch
from stepscope.supervisor.warm_start import ChildProcess, ForkedProcess
from stepscope.telemetry.energy_sampler import EnergyWatch
from stepscope.telemetry.sampling_budget import CpuShare
from stepscope.telemetry.telemetry_sampler import Sampler, Surroundings
from stepscope.units import format_duration

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_OUTPUT_LINES = 5
_GRACE_S = 10.0  # between a word to stop and a kill
_ENDING_S = 0.05  # between two looks at a child that has closed its pipes and is not gone yet
_LONGEST_PAUSE_S = 0.5  # until a signal is passed on; each look takes 0.1 ms of a busy core


class RunListener(Protocol):
    """Is notified of a run's progress. `processes.training_process` lists the messages."""

    def message(self, message: dict[str, Any]) -> None:
        """Receive a message of the training."""

    def output(self, line: str) -> None:
        """Receive a line that the training printed."""

    def stopping(self) -> None:
        """Receive notice that the training was asked to stop."""


@dataclass
class Outcome:
    """How a training ended, with the figures that it reported.

    A training that was `asked_to_stop` may have ended for another reason.
    """

    status: str = schema.FAILED
    reason: str | None = None
    exit_code: int = 70
    traceback: str | None = None
    instrument: dict[str, Any] = field(default_factory=dict)
    layers: list[LayerTime] | None = None
    flops: StepFlops | None = None
    counters: PhaseCounters | None = None
    absent: dict[str, str] = field(default_factory=dict)
    preparation_s: float | None = None
    wall_s: float = 0.0
    peak_memory_bytes: int | None = None
    forecast: MemoryForecast | None = None
    measured_bytes: dict[str, int] = field(default_factory=dict)
    device_memory: dict[str, int] | None = None
    requests: RequestLatency | None = None
    asked_to_stop: bool = False


@dataclass
class StopSignals:
    """Counts the signals that ask to stop or to pause."""

    stops: int = 0
    obeyed: int = 0
    pauses: int = 0
    last: int = signal.SIGTERM

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Count a request to stop."""
        self.stops += 1
        self.last = number

    def pause(self, number: int, frame: FrameType | None) -> None:
        """Count a request to pause (Ctrl-Z)."""
        self.pauses += 1


@dataclass(frozen=True)
class SupervisedProcess:
    """How to start and stop a child process, and how to interpret its end.

    `start` receives the descriptor for messages and the run's origin on the clock, `stop` the
    signal and how many came before it. A process with its own session is killed with all that it
    started. `has_workers`: its children load data, and it continues without them. At its time
    limit it is asked to stop, and some seconds later it is killed. Of several supervised processes
    on one machine, one reads the sensors. `meanwhile` is called with each sample.
    """

    start: Callable[[int, int], ChildProcess]
    stop: Callable[[ChildProcess, int, int], None]
    judge: Callable[[ChildWatch, int], Outcome]
    own_session: bool = True
    has_workers: bool = False
    memory_limit: MemoryLimit | None = None
    time_limit_s: float | None = None
    reads_energy: bool = True
    meanwhile: Callable[[], None] = lambda: None


@contextlib.contextmanager
def stop_signals(*, pausing: bool = True) -> Iterator[StopSignals]:
    """Take signals as requests while a folder is open; one within another takes the same."""
    listener = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    signals = listener if isinstance(listener, StopSignals) else StopSignals()
    handlers = dict.fromkeys(_STOP_SIGNALS, signals.stop)
    if pausing:
        handlers[signal.SIGTSTP] = signals.pause
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
    supervised: SupervisedProcess,
    listener: RunListener,
    signals: StopSignals,
    *,
    elapsed_s: float,
    energy: bool = False,
) -> Outcome:
    """Start a child process, supervise it and return how it ended.

    `elapsed_s` is the time that the run took before it was resumed. With `energy`, the sensors of
    this machine are read meanwhile.
    """
    root = system_root()
    meter = EnergyWatch(folder, root, asked=energy)
    meter.begin(elapsed_s, lambda: signals.stops > 0)
    origin_ns = now_ns() - round(elapsed_s * 1e9)
    origin_unix_s = time.time() - elapsed_s
    meter.read(elapsed_s, all_now=True)
    read_end, write_end = os.pipe()
    log = CsvLog(folder.path / schema.TELEMETRY)
    own_cpu = CpuShare()
    child = supervised.start(write_end, origin_ns)
    try:
        os.close(write_end)
        around = Surroundings(root, folder.add_event, meter.power_w)
        sampler = Sampler(psutil.Process(child.pid), log, origin_ns, surroundings=around)
        memory = MemoryWatch(
            folder,
            child,
            sampler,
            listener.output,
            supervised.memory_limit,
            has_workers=supervised.has_workers,
            may_end=supervised.own_session,
        )
        memory.begin()
        watch = ChildWatch(folder, supervised, child, sampler, listener, signals, memory, meter)
        watch.until_end(read_end)
        try:
            meter.read(seconds(now_ns() - origin_ns), all_now=True)
            meter.close()
            log.close()
        except MachineError as error:
            watch.trouble = error
        outcome = supervised.judge(watch, child.wait())
        of_ranks = outcome.instrument.get("beside_cpu_share") or 0.0
        outcome.instrument["beside_cpu_share"] = of_ranks + own_cpu.share()
        outcome.instrument["forked"] = isinstance(child, ForkedProcess)
        outcome.instrument["origin_unix_s"] = origin_unix_s
        if watch.overdue:
            limit = format_duration(supervised.time_limit_s or 0.0)
            outcome.status, outcome.exit_code = schema.FAILED, 1
            outcome.reason = f"it took longer than its time limit of {limit}, and was ended"
        if outcome.status == schema.OUT_OF_MEMORY:
            memory.end()
    finally:
        _end(supervised, child)
    outcome.wall_s = seconds(now_ns() - origin_ns)
    outcome.peak_memory_bytes = sampler.peak_memory_bytes
    outcome.device_memory = watch.device_memory()
    outcome.forecast = watch.forecast
    outcome.asked_to_stop = signals.stops > 0
    return outcome


@dataclass
class ChildWatch:
    """The supervision of one process, from its start to its end."""

    folder: RunFolder
    supervised: SupervisedProcess
    child: ChildProcess
    sampler: Sampler
    listener: RunListener
    signals: StopSignals
    memory: MemoryWatch
    energy: EnergyWatch
    outcome: Outcome | None = None
    ready: dict[str, Any] = field(default_factory=dict)
    last_words: dict[str, Any] = field(default_factory=dict)
    forecast: MemoryForecast | None = None
    trouble: MachineError | None = None
    overdue: int = 0
    last_output: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_OUTPUT_LINES))

    def until_end(self, messages: int) -> None:
        """Forward messages, output and stop requests, and sample, until both pipes close."""
        with selectors.DefaultSelector() as selector, os.fdopen(messages, "rb") as message_pipe:
            selector.register(message_pipe, selectors.EVENT_READ, _Lines(self._message, False))
            if self.child.stdout is not None:
                lines = _Lines(self._output, True)
                selector.register(self.child.stdout, selectors.EVENT_READ, lines)
            began = next_sample = next_look = next_reading = time.monotonic()
            ended_at = None
            timeout_s = min(_LONGEST_PAUSE_S, self.memory.look_every_s, self.energy.every_s)
            while selector.get_map() or self.child.poll() is None:
                for key, _ in selector.select(timeout_s if selector.get_map() else _ENDING_S):
                    data = os.read(key.fd, 65536)
                    key.data.take(data)
                    if not data:
                        selector.unregister(key.fileobj)
                self._obey()
                self._end_when_overdue(time.monotonic() - began)
                if time.monotonic() >= next_sample:
                    self._sample()
                    next_sample = time.monotonic() + self.sampler.pause_s
                if time.monotonic() >= next_reading:
                    next_reading = time.monotonic() + self.energy.every_s
                    self._read_energy()
                if time.monotonic() >= next_look and self.outcome is None:
                    next_look = time.monotonic() + self.memory.look_every_s
                    self.memory.look()
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
            self._sample(is_last=True)
            if message.get("main_peak_bytes"):  # it may have gone before that sample
                self.sampler.report_peak(message["main_peak_bytes"])
        elif message["type"] == "forecast":
            self.forecast = message["forecast"]
            self.listener.message(message)
        elif message["type"] == "ready":
            self.ready = message
            self._note_what_is_known(message)
            self.listener.message(message)
        elif message["type"] == "device_memory":
            self.sampler.report_device_memory(message["bytes"])
            self.memory.unified = message["unified"]
        elif message["type"] == "last words":
            self.last_words = message
            self._sample(is_last=True)
            self._note_what_is_known(message)
        else:
            self.listener.message(message)

    def device_memory(self) -> dict[str, int] | None:
        """Return the peak device memory: the final report, else the largest one so far."""
        said = self.outcome.device_memory if self.outcome else self.last_words.get("device_memory")
        peak_bytes = self.sampler.peak_device_memory_bytes
        if said is None and peak_bytes is not None:
            return {"peak_bytes": peak_bytes}
        return said

    def _note_what_is_known(self, message: dict[str, Any]) -> None:
        """Write what the child reported into `run.json` at once: it may be killed later."""
        try:
            info = self.folder.read_info()
            known = {"environment": {**info["environment"], **message.get("environment", {})}}
            if "spec" in message:
                known["spec"] = message["spec"]
            self.folder.update_info(**known)
        except MachineError as error:
            self._give_up(error)

    def _output(self, line: str) -> None:
        self.last_output.append(line)
        self.listener.output(line)

    def _obey(self) -> None:
        if self.signals.pauses:
            self._pause()
        if self.signals.stops == self.signals.obeyed:
            return
        before, self.signals.obeyed = self.signals.obeyed, self.signals.stops
        self.supervised.stop(self.child, self.signals.last, before)
        if before == 0:
            self.listener.stopping()

    def _end_when_overdue(self, lived_s: float) -> None:
        """Ask the process to stop at its time limit, and kill it if it does not."""
        limit_s = self.supervised.time_limit_s
        if limit_s is None or self.outcome is not None or self.child.poll() is not None:
            return
        if lived_s > limit_s + _GRACE_S * self.overdue and self.overdue < 2:
            self.supervised.stop(self.child, signal.SIGTERM, self.overdue)
            self.overdue += 1

    def _give_up(self, error: MachineError) -> None:
        """Stop recording because the disk is full, and end a training of ours.

        A user's script continues without us.
        """
        self.trouble = error
        if self.supervised.own_session:
            self.child.terminate()

    def _pause(self) -> None:
        """Pause with the whole process tree, as Ctrl-Z does, until SIGCONT."""
        paused = list(_pause_all(self.child.pid))
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in reversed(paused):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self.signals.pauses = 0

    def _read_energy(self) -> None:
        if self.trouble is None:
            try:
                self.energy.read(seconds(now_ns() - self.sampler.origin_ns))
            except MachineError as error:
                self._give_up(error)

    def _sample(self, *, is_last: bool = False) -> None:
        if self.trouble is not None:
            return
        try:
            reading = self.sampler.sample(is_last=is_last)
            self.supervised.meanwhile()
        except MachineError as error:
            self._give_up(error)
            return
        if reading is not None:
            self.memory.take(reading)


def _pause_all(pid: int) -> Iterator[psutil.Process]:
    """Suspend a process and its descendants, parents first."""
    try:
        process = psutil.Process(pid)
        process.suspend()
        children = process.children()
    except psutil.NoSuchProcess:  # it may just have ended
        return
    yield process
    for child in children:
        yield from _pause_all(child.pid)


class _Lines:
    """Joins bytes into lines and calls a handler for each."""

    def __init__(self, handle: Callable[[str], None], last_may_lack_end: bool) -> None:
        self._handle = handle
        self._last_may_lack_end = last_may_lack_end
        self._rest = b""

    def take(self, data: bytes) -> None:
        """Add bytes; an empty chunk means that the pipe has closed."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest and self._last_may_lack_end:
            lines.append(self._rest)
        for line in lines:
            self._handle(line.decode("utf-8", errors="replace"))


def _end(supervised: SupervisedProcess, child: ChildProcess) -> None:
    """Kill what is left of the child and close its pipe."""
    with contextlib.suppress(ProcessLookupError):
        if supervised.own_session:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()

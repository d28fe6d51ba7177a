"""The light parent of a training: it samples, relays, passes on signals, and learns how it ended.

It needs no torch. What is supervised is a `Charge`: our own training (`supervisor.start_run`) or
somebody's script (`supervisor.script_child`). Neither can outlive the parent.
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
    """Somebody who shows how a run goes. Messages are those of `processes.training_process`."""

    def message(self, message: dict[str, Any]) -> None:
        """Take what the training says of itself."""

    def output(self, line: str) -> None:
        """Take a line that the training printed."""

    def stopping(self) -> None:
        """Learn that the training was asked to stop."""


@dataclass
class Outcome:
    """How a training ended, and what it said of itself before.

    It may have been `asked_to_stop` and still have ended in its own way.
    """

    status: str = schema.FAILED
    reason: str | None = None
    exit_code: int = 70
    traceback: str | None = None
    instrument: dict[str, Any] = field(default_factory=dict)
    layers: list[dict[str, Any]] | None = None
    flops: dict[str, Any] | None = None
    counters: dict[str, Any] | None = None
    absent: dict[str, str] = field(default_factory=dict)
    preparation_s: float | None = None
    wall_s: float = 0.0
    peak_memory_bytes: int | None = None
    forecast: dict[str, Any] | None = None
    measured_bytes: dict[str, int] = field(default_factory=dict)
    device_memory: dict[str, int] | None = None
    requests: dict[str, Any] | None = None
    asked_to_stop: bool = False


@dataclass
class StopSignals:
    """Requests to stop, or to pause, that came by signal."""

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
    """What is supervised: how it is started, told to stop, and judged by how it ended.

    `start` is given the descriptor for messages and the run's origin on the clock; `stop` the
    signal that came and how many came before it. What has a session of its own is ours to end;
    `has_workers` says that its children load data, and that it goes on without them. After its time
    limit it is told to stop, and some seconds later it is killed. Sensors are of the machine: one
    of several charges on it reads them. `meanwhile` is called with each sample as long as it lives.
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
    charge: SupervisedProcess,
    listener: RunListener,
    signals: StopSignals,
    *,
    elapsed_s: float,
    energy: bool = False,
) -> Outcome:
    """Run a charge in a child process and wait for its end.

    `elapsed_s` is how long the run has already lived, before it was resumed; `energy` reads the
    sensors of this machine meanwhile.
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
    child = charge.start(write_end, origin_ns)
    try:
        os.close(write_end)
        around = Surroundings(root, folder.add_event, meter.power_w)
        sampler = Sampler(psutil.Process(child.pid), log, origin_ns, surroundings=around)
        memory = MemoryWatch(
            folder,
            child,
            sampler,
            listener.output,
            charge.memory_limit,
            has_workers=charge.has_workers,
            may_end=charge.own_session,
        )
        memory.begin()
        watch = ChildWatch(folder, charge, child, sampler, listener, signals, memory, meter)
        watch.until_end(read_end)
        try:
            meter.read(seconds(now_ns() - origin_ns), all_now=True)
            meter.close()
            log.close()
        except MachineError as error:
            watch.trouble = error
        outcome = charge.judge(watch, child.wait())
        of_ranks = outcome.instrument.get("beside_cpu_share") or 0.0
        outcome.instrument["beside_cpu_share"] = of_ranks + own_cpu.share()
        outcome.instrument["forked"] = isinstance(child, ForkedProcess)
        outcome.instrument["origin_unix_s"] = origin_unix_s
        if watch.overdue:
            limit = format_duration(charge.time_limit_s or 0.0)
            outcome.status, outcome.exit_code = schema.FAILED, 1
            outcome.reason = f"it took longer than its time limit of {limit}, and was ended"
        if outcome.status == schema.OUT_OF_MEMORY:
            memory.end()
    finally:
        _end(charge, child)
    outcome.wall_s = seconds(now_ns() - origin_ns)
    outcome.peak_memory_bytes = sampler.peak_memory_bytes
    outcome.device_memory = watch.device_memory()
    outcome.forecast = watch.forecast
    outcome.asked_to_stop = signals.stops > 0
    return outcome


@dataclass
class ChildWatch:
    """Everything that goes on between the start of a charge and its end."""

    folder: RunFolder
    charge: SupervisedProcess
    child: ChildProcess
    sampler: Sampler
    listener: RunListener
    signals: StopSignals
    memory: MemoryWatch
    energy: EnergyWatch
    outcome: Outcome | None = None
    ready: dict[str, Any] = field(default_factory=dict)
    last_words: dict[str, Any] = field(default_factory=dict)
    forecast: dict[str, Any] | None = None
    trouble: MachineError | None = None
    overdue: int = 0
    last_output: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_OUTPUT_LINES))

    def until_end(self, messages: int) -> None:
        """Relay messages and output, sample, pass on requests to stop, until both pipes close."""
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
                self.sampler.reported_peak(message["main_peak_bytes"])
        elif message["type"] == "forecast":
            self.forecast = message["forecast"]
            self.listener.message(message)
        elif message["type"] == "ready":
            self.ready = message
            self._note_what_is_known(message)
            self.listener.message(message)
        elif message["type"] == "device_memory":
            self.sampler.told(message["bytes"])
            self.memory.unified = message["unified"]
        elif message["type"] == "last words":
            self.last_words = message
            self._sample(is_last=True)
            self._note_what_is_known(message)
        else:
            self.listener.message(message)

    def device_memory(self) -> dict[str, int] | None:
        """Return the peak of the device's pool: as told at the end, else the most told before."""
        said = self.outcome.device_memory if self.outcome else self.last_words.get("device_memory")
        peak_bytes = self.sampler.peak_device_memory_bytes
        if said is None and peak_bytes is not None:
            return {"peak_bytes": peak_bytes}
        return said

    def _note_what_is_known(self, message: dict[str, Any]) -> None:
        """Put what the child tells of itself into `run.json` now: it may be killed later."""
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
        self.charge.stop(self.child, self.signals.last, before)
        if before == 0:
            self.listener.stopping()

    def _end_when_overdue(self, lived_s: float) -> None:
        """Tell a charge to stop at its time limit; what does not listen is killed."""
        limit_s = self.charge.time_limit_s
        if limit_s is None or self.outcome is not None or self.child.poll() is not None:
            return
        if lived_s > limit_s + _GRACE_S * self.overdue and self.overdue < 2:
            self.charge.stop(self.child, signal.SIGTERM, self.overdue)
            self.overdue += 1

    def _give_up(self, error: MachineError) -> None:
        """The disk is full: the training finds out by itself, or is asked to end here.

        Somebody's own script goes on without us.
        """
        self.trouble = error
        if self.charge.own_session:
            self.child.terminate()

    def _pause(self) -> None:
        """Stop with the whole training, as Ctrl-Z would without us, until somebody goes on."""
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
            self.charge.meanwhile()
        except MachineError as error:
            self._give_up(error)
            return
        if reading is not None:
            self.memory.take(reading)


def _pause_all(pid: int) -> Iterator[psutil.Process]:
    """Stop a process and all below it, which may have sessions of their own; parents first."""
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


def _end(charge: SupervisedProcess, child: ChildProcess) -> None:
    """Leave nothing of the child behind, however the parent's part ended."""
    with contextlib.suppress(ProcessLookupError):
        if charge.own_session:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()

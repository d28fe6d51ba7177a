"""Supervise a child process: sample it, forward its messages and signals, record how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from stepscope.errors import MachineError
from stepscope.hardware.procfs import system_root
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import (
    DeviceMemoryPeak,
    Instrument,
    MemoryForecast,
    ReadyMessage,
    RunMessage,
    ScriptFinalState,
    TrainingResult,
)
from stepscope.supervisor.hang_watch import HangWatch
from stepscope.supervisor.memory_guard import MemoryLimit, MemoryWatch
from stepscope.supervisor.signals import StopSignals, pause_with_tree
from stepscope.supervisor.warm_start import ChildProcess, ForkedProcess
from stepscope.telemetry.energy_sampler import EnergyWatch
from stepscope.telemetry.telemetry_sampler import CpuShare, Sampler, Surroundings
from stepscope.units import format_duration

_LAST_OUTPUT_LINES = 5
_GRACE_S = 10.0  # between a stop request and a kill
_ENDING_S = 0.05  # between two checks of a child that has closed its pipes and still runs
_LONGEST_PAUSE_S = 0.5  # until a signal is passed on; each check takes 0.1 ms of a busy core


class RunListener(Protocol):
    """Is notified of a run's progress. `records.types.RunMessage` lists the messages."""

    def message(self, message: RunMessage) -> None:
        """Receive a message of the training."""

    def output(self, line: str) -> None:
        """Receive a line that the training printed."""

    def stopping(self) -> None:
        """Receive notice that the training was asked to stop."""


class SilentListener:
    """A listener that shows nothing."""

    def message(self, message: RunMessage) -> None:
        """Ignore a message of the training."""

    def output(self, line: str) -> None:
        """Ignore a line that the training printed."""

    def stopping(self) -> None:
        """Ignore that the training was asked to stop."""


@dataclass
class Outcome:
    """How a training ended, with the figures that it reported."""

    status: str = schema.FAILED
    reason: str | None = None
    exit_code: int = 70
    traceback: str | None = None
    result: TrainingResult = field(default_factory=TrainingResult)
    preparation_s: float | None = None
    wall_s: float = 0.0
    peak_memory_bytes: int | None = None
    forecast: MemoryForecast | None = None
    asked_to_stop: bool = False  # it may have ended for another reason

    @property
    def was_cut_short(self) -> bool:
        """Whether it was asked to stop before it was complete."""
        return self.asked_to_stop and self.status != schema.COMPLETED


@dataclass(frozen=True, kw_only=True)
class SupervisedProcess(ABC):
    """A child process: our training, several ranks of it, or a user's script.

    A process with its own session is killed with all that it started. `has_workers`: its children
    load data, and it continues without them. Of several on one machine, one `reads_energy`.
    `on_sample` is called with each sample of its memory. With `hang_after_s` 0 it may hang.
    """

    own_session: bool = True
    has_workers: bool = False
    memory_limit: MemoryLimit | None = None
    time_limit_s: float | None = None
    hang_after_s: float = 0.0
    on_hang: str = "warn"
    reads_energy: bool = True
    on_sample: Callable[[], None] = lambda: None

    @abstractmethod
    def start(self, messages: int, origin_ns: int) -> ChildProcess:
        """Start it, with a descriptor for its messages and the run's origin on the clock."""

    def stop(self, child: ChildProcess, number: int, before: int) -> None:
        """Ask a training to stop between two steps; kill it if `before` signals came earlier."""
        if before == 0:
            child.terminate()
        else:
            child.kill()

    @abstractmethod
    def outcome(self, watch: ChildWatch, returncode: int) -> Outcome:
        """Return how it ended."""


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

    `elapsed_s` is the time that the run took before it was resumed.
    """
    root = system_root()
    meter = EnergyWatch.of_run(folder, root, asked=energy)
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
        watch = ChildWatch(folder, supervised, child, sampler, listener, signals, memory, meter)
        if supervised.hang_after_s > 0:
            watch.hang = HangWatch(
                folder,
                child,
                origin_ns,
                listener.output,
                supervised.hang_after_s,
                supervised.on_hang,
                is_script=not supervised.own_session,
            )
        watch.until_end(read_end)
        if watch.hang is not None:
            watch.hang.close()
        try:
            meter.read(seconds(now_ns() - origin_ns), all_now=True)
            meter.close()
            log.close()
        except MachineError as error:
            watch.recording_error = error
        outcome = supervised.outcome(watch, child.wait())
        instrument: Instrument = {**outcome.result.get("instrument", {})}
        of_ranks = instrument.get("beside_cpu_share") or 0.0
        instrument["beside_cpu_share"] = of_ranks + own_cpu.share()
        instrument["forked"] = isinstance(child, ForkedProcess)
        instrument["origin_unix_s"] = origin_unix_s
        if watch.overdue:
            limit = format_duration(supervised.time_limit_s or 0.0)
            outcome.status, outcome.exit_code = schema.FAILED, 1
            outcome.reason = f"stopped at its time limit of {limit}"
        if outcome.status == schema.OUT_OF_MEMORY:
            memory.add_guard_event("ended")
    finally:
        with contextlib.suppress(ProcessLookupError):
            if supervised.own_session:
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    outcome.result["instrument"] = instrument
    outcome.result["device_memory"] = watch.device_memory()
    outcome.preparation_s = watch.ready.get("preparation_s") if watch.ready else None
    outcome.wall_s = seconds(now_ns() - origin_ns)
    outcome.peak_memory_bytes = sampler.peak_memory_bytes
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
    hang: HangWatch | None = None
    outcome: Outcome | None = None
    ready: ReadyMessage | None = None
    final_state: ScriptFinalState | None = None
    forecast: MemoryForecast | None = None
    recording_error: MachineError | None = None
    overdue: int = 0
    last_output: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_OUTPUT_LINES))

    def until_end(self, messages: int) -> None:
        """Forward messages, output and stop requests, and sample, until both pipes close."""
        with selectors.DefaultSelector() as selector, os.fdopen(messages, "rb") as message_pipe:
            selector.register(message_pipe, selectors.EVENT_READ, _Lines(self._message, False))
            if self.child.stdout is not None:
                lines = _Lines(self._output, True)
                selector.register(self.child.stdout, selectors.EVENT_READ, lines)
            began = next_sample = next_check = next_reading = next_look = time.monotonic()
            ended_at = None
            timeout_s = min(_LONGEST_PAUSE_S, self.memory.check_every_s, self.energy.every_s)
            while selector.get_map() or self.child.poll() is None:
                for key, _ in selector.select(timeout_s if selector.get_map() else _ENDING_S):
                    data = os.read(key.fd, 65536)
                    key.data.take(data)
                    if not data:
                        selector.unregister(key.fileobj)
                self._pass_on_signals()
                self._end_when_overdue(time.monotonic() - began)
                if time.monotonic() >= next_sample:
                    self._sample()
                    next_sample = time.monotonic() + self.sampler.pause_s
                if time.monotonic() >= next_reading and self.recording_error is None:
                    next_reading = time.monotonic() + self.energy.every_s
                    with self._recording():
                        self.energy.read(seconds(now_ns() - self.sampler.origin_ns))
                if time.monotonic() >= next_check and self.outcome is None:
                    next_check = time.monotonic() + self.memory.check_every_s
                    self.memory.check()
                if self.hang and time.monotonic() >= next_look and self._may_hang():
                    next_look = time.monotonic() + self.hang.check_every_s
                    self.hang.check()
                if self.child.poll() is not None:
                    # Whatever it left running may hold the pipes open, and even fill them.
                    ended_at = ended_at or time.monotonic()
                    if time.monotonic() - ended_at > 1 or not selector.select(timeout=0):
                        break

    def _may_hang(self) -> bool:
        """Return whether it should still make progress."""
        return self.outcome is None and not self.signals.stops and self.child.poll() is None

    def _message(self, line: str) -> None:
        message: RunMessage = json.loads(line)
        if self.hang is not None:
            self.hang.heard(message)
        if message["type"] == "outcome":
            self.outcome = Outcome(
                message["status"],
                message["reason"],
                message["exit_code"],
                message["traceback"],
                message["result"],
            )
            self._sample(is_last=True)
            if message["main_peak_bytes"]:  # the process may have ended before that sample
                self.sampler.report_peak(message["main_peak_bytes"])
        elif message["type"] == "final_state":
            self.final_state = message
            self._sample(is_last=True)
            self._record_environment(message)
        elif message["type"] == "device_memory":
            self.sampler.report_device_memory(message["bytes"])
            self.memory.unified = message["unified"]
        else:
            if message["type"] == "forecast":
                self.forecast = message["forecast"]
            elif message["type"] == "ready":
                self.ready = message
                self._record_environment(message)
            self.listener.message(message)

    @property
    def stopped_because(self) -> str | None:
        """Why it was stopped, if it hung."""
        return None if self.hang is None else self.hang.stopped_because

    @property
    def raised(self) -> str | None:
        """The exception that ended a script, if its tracer has reported one."""
        return self.final_state.get("raised") if self.final_state else None

    def device_memory(self) -> DeviceMemoryPeak | None:
        """Return the peak device memory: the final report, else the largest one so far."""
        reported = self.final_state.get("device_memory") if self.final_state else None
        if self.outcome is not None:
            reported = self.outcome.result.get("device_memory")
        peak_bytes = self.sampler.peak_device_memory_bytes
        if reported is None and peak_bytes is not None:
            return {"peak_bytes": peak_bytes}
        return reported

    def _record_environment(self, message: ReadyMessage | ScriptFinalState) -> None:
        """Write what the child reported into `run.json` at once: it may be killed later."""
        with self._recording():
            info = self.folder.read_info()
            info["environment"] = {**info["environment"], **message.get("environment", {})}
            if message["type"] == "ready" and "spec" in message:
                info["spec"] = message["spec"]
            self.folder.write_info(info)

    def _output(self, line: str) -> None:
        self.last_output.append(line)
        self.listener.output(line)

    def _pass_on_signals(self) -> None:
        if self.signals.pauses:
            pause_with_tree(self.child.pid)
            self.signals.pauses = 0
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

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Stop recording if the disk is full; end a training of ours, but no user's script."""
        try:
            yield
        except MachineError as error:
            self.recording_error = error
            if self.supervised.own_session:
                self.child.terminate()

    def _sample(self, *, is_last: bool = False) -> None:
        if self.recording_error is not None:
            return
        with self._recording():
            self.folder.check_is_there()
            reading = self.sampler.sample(is_last=is_last)
            self.supervised.on_sample()
            if reading is not None:
                self.memory.take(reading)


@dataclass
class _Lines:
    """Joins bytes into lines and calls a handler for each."""

    handle: Callable[[str], None]
    last_may_lack_end: bool
    rest: bytes = b""

    def take(self, data: bytes) -> None:
        """Add bytes; an empty chunk means that the pipe has closed."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if not data and self.rest and self.last_may_lack_end:
            lines.append(self.rest)
        for line in lines:
            self.handle(line.decode("utf-8", errors="replace"))

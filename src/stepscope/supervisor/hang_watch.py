"""Notice a run that hangs: no step for long, and no other sign of progress.

Progress is a row of a step, a message of the training, or the heartbeat of a script, whose stack
changes. A run that shows none hangs after `after_s` and 20 median steps if its processes
are idle. If they use CPU time or move data, it may be a long computation, a compilation or a slow
loader, and ten times as long must pass. The time in which a run is stopped (Ctrl-Z), or the machine
suspended, does not count.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from stepscope.errors import MachineError, RequestError
from stepscope.hardware.kernel_waits import TERMINAL, kernel_waits, process_state
from stepscope.hardware.process import descendants, find_rank
from stepscope.hardware.stack_dump import HEARTBEAT, STACKS_FILE, STEPPED, StackDumpFile
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csv_log import last_rows
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import HangingProcess, RunMessage, ThreadStack
from stepscope.supervisor.hang_cause import (
    OTHER,
    TRAINER,
    WORKER,
    WORKER_LOOP,
    find_cause,
    format_place,
    parse_stacks,
    process_waits_for,
    script_frames,
    thread_waits_for,
)
from stepscope.supervisor.warm_start import ChildProcess
from stepscope.units import format_duration, parse_duration

DEFAULT_AFTER_S = 60.0
_MEDIANS = 20
_PATIENCE_IF_BUSY = 10
_CHECK_EVERY_S = (0.25, 1.0)
# What samplers, watchdogs and monitors of idle processes use: of a core, and bytes a second.
_IDLE_CPU_SHARE = 0.05
_IDLE_CPU_SHARE_OF_EACH = 0.01
_IDLE_BYTES_PER_S = 4096
_MOST_PROCESSES = 24
_MOST_FRAMES = 8  # of a thread, on the terminal
_LONGEST_CODE = 50
_GRACE_S = 4.0  # between the request to stop and the kill


def parse_hang_after(text: str) -> float:
    """Read `--hang-after`: a time such as `60s`, or 0 for never."""
    if text.strip() == "0":
        return 0.0
    try:
        return parse_duration(text)
    except ValueError as error:
        raise RequestError(f"hang_after: {error}, or 0 for never.") from error


@dataclass
class HangWatch:
    """The progress of one supervised process, from its start to its end.

    `on_hang` is what is done then: `warn` or `stop`.
    """

    folder: RunFolder
    child: ChildProcess
    origin_ns: int
    print_line: Callable[[str], None]
    after_s: float
    on_hang: str = "warn"
    is_script: bool = False
    stopped_because: str | None = None

    def __post_init__(self) -> None:
        shortest_s, longest_s = _CHECK_EVERY_S
        self.check_every_s = min(max(self.after_s / 8, shortest_s), longest_s)
        self._process = psutil.Process(self.child.pid)
        self._stacks = StackDumpFile(self.folder.path / STACKS_FILE)
        self._steps = self.folder.path / schema.STEPS
        rank = find_rank() if self.is_script else None  # a training's rank is named anyway
        self._rank = "" if rank is None else f"rank {rank.rank}: "
        self._checked_at = time.monotonic()
        self._silent_s = 0.0
        self._marks = (0, 0)
        self._use_of: dict[int, tuple[float, float]] = {}  # of each process: CPU time, bytes
        self._used = (0.0, 0.0)  # of all, those that have ended included
        self._window: deque[tuple[float, float, float]] = deque()
        self._heard: set[str] = set()  # types of messages; rows may still be in memory
        self._is_evaluating = False
        self._hangs = False
        self._stop_requested_at: float | None = None
        self._asked: list[psutil.Process] = []

    def heard(self, message: RunMessage) -> None:
        """Take a message of the training as progress."""
        self._is_evaluating = message["type"] == "testing"
        self._heard.add(message["type"])
        self._moved()

    def check(self) -> None:
        """Look for progress; report a hang, or its end. Called every `check_every_s` or later."""
        now = time.monotonic()
        passed_s, self._checked_at = now - self._checked_at, now
        if self._stop_requested_at is not None:
            if now - self._stop_requested_at > _GRACE_S:
                self.child.kill()
            return
        marks = self._read_marks()
        if marks != self._marks:
            self._marks = marks
            self._moved()
            return
        # A longer pause between two checks: this process was stopped too, or the machine suspended.
        if process_state(self.child.pid) in ("T", "t", "Z") or passed_s > 10 * self.check_every_s:
            self._window.clear()
            return
        self._silent_s += passed_s
        if not self._hangs:
            self._add_use(passed_s)
            self._window.append((self._silent_s, *self._used))
            self._report_if_hanging()

    def close(self) -> None:
        """Delete the file of stacks; after a stop, end what the process has left."""
        self._stacks.remove()
        if self._stop_requested_at is not None:
            for process in self._asked:
                with contextlib.suppress(psutil.Error):  # it has ended
                    process.kill()

    def _read_marks(self) -> tuple[int, int]:
        try:
            size = self._steps.stat().st_size
        except OSError:  # the folder is gone: other checks find out
            size = 0
        return size, self._stacks.touches()

    def _moved(self) -> None:
        if self._hangs and self._stop_requested_at is None:
            lasted = format_duration(self._silent_s)
            self._add_event("hang_ended", lasted_s=self._silent_s)
            self.print_line(f"stepscope: the run continues after {lasted} without progress")
        self._hangs, self._silent_s = False, 0.0
        self._window.clear()

    def _add_use(self, passed_s: float) -> None:
        """Add what the processes have used since the last call: CPU time, and bytes moved.

        A process that could run, but gets no CPU of a busy machine, counts as one that runs.
        """
        before, self._use_of = self._use_of, {}
        total_s, total_bytes = self._used
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                cpu_s, moved_bytes = self._use_of[process.pid] = _used(process)
                cpu_before_s, bytes_before = before.get(process.pid, (0.0, 0.0))
                runs_s = passed_s if process_state(process.pid) == "R" else 0.0
                total_s += max(runs_s, cpu_s - cpu_before_s)
                total_bytes += max(0.0, moved_bytes - bytes_before)
        self._used = total_s, total_bytes

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._process, *descendants(self._process)]
        except psutil.Error:  # it has ended
            return []

    def _report_if_hanging(self) -> None:
        if self._silent_s < self.after_s:
            return
        median_s = _median_step_s(self._steps)
        limit_s = max(self.after_s, _MEDIANS * (median_s or 0.0))
        is_busy = self._is_busy()
        if is_busy:
            if not self._can_show_progress():
                return
            limit_s *= _PATIENCE_IF_BUSY
        if self._silent_s < limit_s:
            return
        processes = self._describe_processes()
        if not processes or processes[0]["waits_for"] == TERMINAL:
            self._silent_s = 0.0  # it waits for its user
            return
        self._hangs = True
        self._marks = self._read_marks()  # the stacks were written just now
        self._report(processes, median_s, is_busy)

    def _can_show_progress(self) -> bool:
        """Return whether progress would be seen now, apart from steps."""
        if self.is_script:
            return self._stacks.has_note(HEARTBEAT)
        return "ready" in self._heard and not self._is_evaluating

    def _is_busy(self) -> bool:
        """Return whether the processes did anything in the last `after_s`."""
        end_s, cpu_s, moved_bytes = self._window[-1]
        while len(self._window) > 2 and self._window[1][0] <= end_s - self.after_s:
            self._window.popleft()
        begin_s, cpu_before_s, bytes_before = self._window[0]
        span_s = end_s - begin_s
        if span_s <= 0:
            return True
        idle_share = _IDLE_CPU_SHARE + _IDLE_CPU_SHARE_OF_EACH * len(self._use_of)
        return (
            cpu_s - cpu_before_s > idle_share * span_s
            or moved_bytes - bytes_before > _IDLE_BYTES_PER_S * span_s
        )

    def _report(
        self, processes: list[HangingProcess], median_s: float | None, is_busy: bool
    ) -> None:
        silent = format_duration(self._silent_s)
        since = f"no step yet after {silent}"
        if median_s is not None:
            since = f"no step for {silent} (usually one in {format_duration(median_s)})"
        elif "progress" in self._heard or self._stacks.has_note(STEPPED):
            since = f"no step for {silent}"
        if is_busy:
            since += ", although its processes are busy"
        cause, advice = find_cause(processes)
        self._add_event(
            "hang",
            silent_s=self._silent_s,
            median_step_s=median_s,
            is_busy=is_busy,
            waits_for=processes[0]["waits_for"],
            text=cause,
            advice=advice,
            action=self.on_hang,
            processes=processes,
        )
        self.print_line(f"stepscope: {self._rank}hang: {since}. {cause}")
        self.print_line(f"  To do: {advice}")
        for line in _terminal_lines(processes):
            self.print_line(line)
        if self.on_hang == "stop":
            self.stopped_because = f"stopped by --on-hang: {since}. {cause}"
            self._stop_requested_at = time.monotonic()
            # A script is interrupted as by Ctrl-C, so that it can clean up.
            self.child.send_signal(signal.SIGINT if self.is_script else signal.SIGTERM)

    def _describe_processes(self) -> list[HangingProcess]:
        tree = self._tree()[:_MOST_PROCESSES]
        self._asked = tree[1:]
        commands = [_command(process) for process in tree]
        found: list[HangingProcess] = []
        for process, command in zip(tree, commands, strict=True):
            words = " ".join(command)
            if "resource_tracker" in words or "multiprocessing.forkserver" in words:
                continue
            pid = process.pid
            state, kernel = process_state(pid), kernel_waits(pid)  # before the signal changes it
            text, reason = None, "it is stopped" if state in ("T", "t") else None
            if reason is None:
                text, reason = self._stacks.request(pid, self.child.pid)
            threads = parse_stacks(text or "")
            for thread in threads[:-1]:
                thread["waits_for"] = thread_waits_for(thread)
            described: HangingProcess = {
                "pid": pid,
                "role": TRAINER,
                "command": _program(command),
                "state": state,
                "waits_for": None,
                "threads": threads,
                "no_stacks": reason,
                "kernel": kernel,
            }
            described["waits_for"] = process_waits_for(described)
            if threads:
                threads[-1]["waits_for"] = described["waits_for"]
            if pid != self.child.pid:
                is_copy = command == commands[0] or "multiprocessing" in words
                awaited = is_copy and not threads and found and found[0]["waits_for"] == WORKER
                described["role"] = WORKER if awaited or _loads(threads) else OTHER
            found.append(described)
        return found

    def _add_event(self, kind: str, **detail: object) -> None:
        with contextlib.suppress(MachineError):  # the disk is full: the telemetry finds out too
            self.folder.add_event(kind, seconds(now_ns() - self.origin_ns), **detail)


def _used(process: psutil.Process) -> tuple[float, float]:
    cpu = process.cpu_times()
    moved = 0.0
    with contextlib.suppress(AttributeError, psutil.AccessDenied):  # not on every system
        io = process.io_counters()
        moved = io.read_chars + io.write_chars
    return cpu.user + cpu.system, moved


def _median_step_s(steps: Path) -> float | None:
    """Return the median time of the last steps; None without any."""
    try:
        _, rows = last_rows(steps)
    except OSError:
        return None
    times_s = [float(row["step_s"]) for row in rows if row["step_s"]]
    return statistics.median(times_s) if times_s else None


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _program(command: list[str]) -> str:
    """Return the program and its script; other arguments may hold secrets."""
    if not command:
        return "?"
    program, *arguments = command
    shown = [Path(program).name]
    if shown[0].startswith("python") and arguments:
        shown.append(arguments[0] if arguments[0].startswith("-") else Path(arguments[0]).name)
        shown += arguments[1:2] if arguments[0] == "-m" else []
    return " ".join(shown)[:80]


def _loads(threads: list[ThreadStack]) -> bool:
    return any(frame["file"].endswith(WORKER_LOOP) for each in threads for frame in each["frames"])


def _terminal_lines(processes: list[HangingProcess]) -> Iterator[str]:
    """Yield the stacks, those of alike processes once."""
    groups: dict[str, tuple[HangingProcess, list[int]]] = {}
    for process in processes:
        places = [format_place(f) for thread in process["threads"] for f in thread["frames"]]
        key = " ".join([process["role"], str(process["waits_for"]), *places])
        groups.setdefault(key, (process, []))[1].append(process["pid"])
    for process, pids in groups.values():
        yield from _process_lines(process, ", ".join(map(str, pids)))


def _process_lines(process: HangingProcess, pids: str) -> Iterator[str]:
    kernel = process["kernel"][0] if process["kernel"] else None
    in_kernel = ""
    if kernel is not None and (kernel["call"] or kernel["function"]):
        target = f" of {kernel['target']}" if kernel["target"] else ""
        in_kernel = f" (in the kernel: {kernel['call'] or kernel['function']}{target})"
    waits = f"waits for: {process['waits_for'] or 'nothing known'}"
    yield f"  {process['role']} {pids}: {waits}{in_kernel}"
    if not process["threads"]:
        yield f"    {process['command']}: no Python stack: {process['no_stacks']}"
    for thread in reversed(process["threads"]):
        script = script_frames(thread)
        if thread["name"] != "main":
            if not script:
                continue  # a library's thread: it is in the record
            name = f"thread {thread['name'] or ''}".rstrip()
            yield f"   {name}: waits for: {thread['waits_for'] or 'nothing known'}"
        shown = [f for n, f in enumerate(thread["frames"]) if n < 2 or f in script]
        for frame in shown[:_MOST_FRAMES]:
            code = f": {frame['code'][:_LONGEST_CODE]}" if frame["code"] else ""
            yield f"    {format_place(frame)} in {frame['function']}{code}"

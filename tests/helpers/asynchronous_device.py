"""Training loops on a simulated asynchronous device, as rows of `steps.csv`.

A host launches operations into a queue that the device works through in order. The host waits when
the queue is full, or when it reads a result. Both clocks are read at every end of a phase, as the
meter and the tracer do; the device's may count from another moment, and run faster.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from written_tables import write_tables

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.records import schema
from stepscope.records.run_reader import Run

DEPTH = 1024
LAUNCH_MS = 0.01
SAMPLED_MS = 20.0


@dataclass
class AsynchronousLoop:
    """A loop that is played: what the host does, and when the device is done with it."""

    offset_ms: float = 0.0
    drift: float = 0.0
    host_ms: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    _queue: deque[float] = field(default_factory=lambda: deque([0.0], DEPTH))  # when each is done
    _laps: list[tuple[str, float, float]] = field(default_factory=list)
    _since: tuple[float, float] | None = None
    _lines: dict[tuple[str | None, str, str], dict[str, float]] = field(default_factory=dict)
    _line: tuple[str | None, str, str] | None = None

    def work(self, ms: float, line: tuple[str | None, str, str] | None = None) -> None:
        """Let the host work, in a line of the script: activity, line, code."""
        self.host_ms += ms
        if line is not None:
            self._lines.setdefault(line, defaultdict(float))["now"] += ms

    def launch(self, operations: int, device_ms: float) -> None:
        """Launch operations that take the device so long in all."""
        for _ in range(operations):
            self.host_ms += LAUNCH_MS
            if len(self._queue) == DEPTH:
                self.host_ms = max(self.host_ms, self._queue[0])
            self._queue.append(max(self.host_ms, self._queue[-1]) + device_ms / operations)

    def wait(self, line: tuple[str | None, str, str] | None = None) -> None:
        """Wait until the device has done everything."""
        self.work(max(0.0, self._queue[-1] - self.host_ms), line)

    def lap(self, phase: str) -> None:
        """End a phase."""
        self.launch(1, 0.0)
        host_ms, at_ms = self.host_ms, self._queue[-1]
        device_ms = self.offset_ms + at_ms * (1 + self.drift)
        if self._since is not None:
            self._laps.append((phase, host_ms - self._since[0], device_ms - self._since[1]))
        self._since = host_ms, device_ms
        for times in self._lines.values():
            times[phase] += times.pop("now", 0.0)

    def step(self) -> None:
        """End a step."""
        self.lap("other")
        row: dict[str, Any] = {"epoch": 1, "step": len(self.rows) + 1, "samples": 32}
        host, device = defaultdict[str, float](float), defaultdict[str, float](float)
        for phase, host_ms, device_ms in self._laps:
            host[phase] += host_ms / 1e3
            device[phase] += device_ms / 1e3
        self._laps.clear()
        row |= {f"{phase}_s": host[phase] for phase in schema.PHASES}
        names = zip(schema.DEVICE_PHASES, schema.PHASES, strict=True)
        row |= {f"{name}_device_s": device[phase] for name, phase in names}
        step_s = sum(host.values())
        start_s = self.host_ms / 1e3 - step_s
        loaded = {"load_s": host["data"], "load_worker": -1 if host["data"] else None}
        self.rows.append({**row, **loaded, "step_s": step_s, "start_s": start_s, "detail": "full"})

    def stacks(self) -> list[dict[str, Any]]:
        """Return what samples of the script's stack would have told."""
        return [
            {
                "where": phase,
                "activity": activity,
                "line": line,
                "code": code,
                "total_s": ms / 1e3,
                "samples": round(ms / SAMPLED_MS),
            }
            for (activity, line, code), times in self._lines.items()
            for phase, ms in times.items()
            if ms
        ]


def played(
    folder: Path, do_step: Callable[[AsynchronousLoop], None], steps: int = 100, **clock: float
) -> Run:
    """Return the recorded run of a script whose loop does this."""
    loop = AsynchronousLoop(**clock)
    loop.lap("other")
    for _ in range(steps):
        do_step(loop)
        loop.step()
    wall_s = loop.host_ms / 1e3
    epoch = {"epoch": 1, "split": "train", "start_s": 0.0, "total_s": wall_s}
    epochs = [{**epoch, "loader_start_s": 0.0, "loader_stop_s": 0.0, "samples": 32 * steps}]
    machine = {"device": "cuda:0", "cpus_usable": 8, "threads": 8}
    about = {"kind": "trace", "spec": {"script": "train.py"}, "environment": machine}
    run = write_tables(folder, loop.rows, epochs, **about)
    measured = Measured(wall_s=wall_s, script={"stacks": loop.stacks()})  # type: ignore[typeddict-item]
    return run.with_summary(summarize(run, measured))

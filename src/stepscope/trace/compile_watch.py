"""What torch.compile does in a user script: compilations, their reasons, and graph breaks.

Read from torch's own records, once a second. torch keeps the last 64 compilations. Nothing is
imported: a script that compiles has loaded `torch._dynamo` itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.meter.clock import now_ns, seconds
from stepscope.trace.stack_sampler import is_script_file

if TYPE_CHECKING:
    from stepscope.records.types import Compilation, CompileFigures, GraphBreak

_MOST = 100  # compilations that are listed
_LONGEST_TEXT = 160
LIMIT_REACHED = "recompile_limit"


@dataclass
class CompileWatch:
    """Collects what torch records of its compilations."""

    origin_ns: int
    absent: str | None = None
    _by_id: dict[str, Compilation] = field(default_factory=dict)
    _seen: set[tuple[Any, ...]] = field(default_factory=set)
    _breaks: dict[tuple[str, str | None], GraphBreak] = field(default_factory=dict)
    _breaks_seen: int = 0
    _count: int = 0
    _limit_reached: bool = False

    def look(self) -> None:
        """Take what torch has recorded since the last look."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None:
            return
        try:
            self._take_new(dynamo)
        except (AttributeError, KeyError, TypeError) as error:  # another version of torch
            self.absent = f"torch's records of compilations have another form: {error}"

    def _take_new(self, dynamo: Any) -> None:
        for metrics in dynamo.get_compilation_metrics():
            self._take(metrics)
        self._count = max(self._count, dynamo.counters["frames"].get("total", 0))
        reasons = dynamo.graph_break_reasons
        if len(reasons) < self._breaks_seen:  # torch._dynamo.reset()
            self._breaks_seen = 0
        self._take_breaks(reasons[self._breaks_seen :])
        self._breaks_seen = len(reasons)

    def _take(self, metrics: Any) -> None:
        """Take the compilation of a frame, or of the backward pass of one."""
        identity, start_s = str(metrics.compile_id), _start_s(metrics)
        key = (identity, start_s, metrics.co_name)
        if key in self._seen or start_s is None:
            return
        self._seen.add(key)
        reason = getattr(metrics, "recompile_reason", None)
        if LIMIT_REACHED in str(metrics.fail_reason):
            self._limit_reached = True
        file, number = metrics.co_filename, metrics.co_firstlineno
        in_script = file is not None and is_script_file(file)
        found = self._by_id.setdefault(
            identity,
            {
                "start_s": start_s - time.time() + seconds(now_ns() - self.origin_ns),
                "took_s": 0.0,
                "function": metrics.co_name or "?",
                "line": f"{Path(file).name}:{number}" if in_script else None,
                "reason": None if reason is None else _reason(reason),
            },
        )
        found["took_s"] += _took_s(metrics)

    def _take_breaks(self, reasons: Iterable[Any]) -> None:
        for each in reasons:
            reason = _first_line(each.reason)
            frames = [frame for frame in each.user_stack if is_script_file(frame.filename)]
            frame = frames[-1] if frames else None
            line = None if frame is None else f"{Path(frame.filename).name}:{frame.lineno}"
            found = self._breaks.setdefault(
                (reason, line), {"reason": reason, "line": line, "count": 0}
            )
            found["count"] += 1

    def figures(self) -> CompileFigures | None:
        """Return what was compiled; None if nothing was."""
        listed = list(self._by_id.values())
        if not listed:
            return None
        again = [each for each in listed if each["reason"] is not None]
        return {
            "count": max(self._count, len(listed)),
            "recompilations": len(again),
            "total_s": sum(each["took_s"] for each in listed),
            "recompilations_s": sum(each["took_s"] for each in again),
            "limit_reached": self._limit_reached,
            "compilations": sorted(listed, key=lambda each: each["start_s"])[:_MOST],
            "graph_breaks": sorted(
                self._breaks.values(), key=lambda each: each["count"], reverse=True
            ),
        }


def _start_s(metrics: Any) -> float | None:
    """Return when a compilation began, in seconds of the system's clock."""
    start_us = getattr(metrics, "start_time_us", None)  # from torch 2.6 on
    if start_us is not None:
        return float(start_us) * 1e-6
    return None if metrics.start_time is None else float(metrics.start_time)


def _took_s(metrics: Any) -> float:
    took_us = getattr(metrics, "duration_us", None)
    if took_us is not None:
        return float(took_us) * 1e-6
    return float(metrics.entire_frame_compile_time_s or 0.0)


def _reason(text: str) -> str:
    """Return the reason without the number of the compilation: `0/1: tensor 'x' size mismatch`."""
    number, colon, rest = _first_line(text).partition(": ")
    return rest if colon and number.replace("/", "").isdecimal() else _first_line(text)


def _first_line(text: Any) -> str:
    lines = str(text).strip().splitlines()
    return lines[0].strip()[:_LONGEST_TEXT] if lines else "unknown"

"""Samples what the script does: the line that runs, some times a second.

A thread looks at the stack of the traced thread. It changes nothing in the script, and what a
sample costs does not depend on how often the script calls anything. Samples are kept as references
to code; `stack_times` names them when the script has ended.

The thread is started below `threading`, so the script does not find it in `threading.enumerate()`.
"""

from __future__ import annotations

import _thread
import functools
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NamedTuple

from stepscope.meter.clock import now_ns, seconds

if TYPE_CHECKING:
    from stepscope.records.types import StackTime
    from stepscope.trace.event_buffer import HookState

# Every sample takes the interpreter lock for some 30 us, so 50 a second take 0.15 %. A long run
# needs fewer: after `_MOST` samples every second one is dropped and the interval is doubled.
INTERVAL_S = 0.02
_MOST = 16_384
_DEEPEST = 200  # frames that are looked at
_LONGEST_TEXT = 80
_MOST_LINES = 200
_STRINGS = re.compile(r"""(["'])(?:\\.|(?!\1).)*(?:\1|$)""")
_uniform = Random(0).uniform

_OUR_FOLDER = str(Path(__file__).parents[1])
_TRACER = str(Path(__file__).with_name("tracer.py"))
_LIBRARY_FOLDERS = tuple(
    {
        sysconfig.get_paths()[name]
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if name in sysconfig.get_paths()
    }
)

# What a library's function is for, by a part of its path. The innermost match names the sample.
_ACTIVITIES = (
    ("torch/serialization.py", "checkpoint"),
    ("torch/distributed/checkpoint", "checkpoint"),
    ("safetensors", "checkpoint"),
    ("torch/nn/utils/clip_grad.py", "gradient clipping"),
    ("torch/optim/lr_scheduler.py", "scheduler"),
    ("torchmetrics", "metric"),
    ("torcheval", "metric"),
    ("sklearn/metrics", "metric"),
    ("torch/_tensor_str.py", "synchronising read"),
    ("torch/utils/tensorboard", "logging"),
    ("tensorboardX", "logging"),
    ("wandb", "logging"),
    ("mlflow", "logging"),
    ("tqdm", "logging"),
    ("logging/__init__.py", "logging"),
    ("torch/_dynamo", "compilation"),
    ("torch/_inductor", "compilation"),
)

# The same for a call in the script itself, by its text.
_CALLS = (
    (r"\btorch\.save\(|\bsave_file\(|\bsave_pretrained\(|\bsave_checkpoint\(", "checkpoint"),
    (r"\.item\(|\.tolist\(|\.cpu\(|\.numpy\(|\bfloat\(|\.synchronize\(", "synchronising read"),
    (r"\bclip_grad_(norm|value)_?\(", "gradient clipping"),
    (r"\bgc\.collect\(", "garbage collection"),
    (r"\bprint\(|\badd_(scalar|histogram|image)s?\(|\.log\(|\blogg(er|ing)\.", "logging"),
    (r"\bsched(uler)?\.step\(", "scheduler"),
)


class _Sample(NamedTuple):
    time_ns: int
    phase: str
    activity: str | None
    code: CodeType | None  # of the innermost frame of the script, and its instruction
    instruction: int


class StoppableThread:
    """A thread below `threading` that is ended before the interpreter is.

    A thread that the interpreter outlives is unwound by force, and with torch loaded that aborts
    the process.
    """

    def __init__(self) -> None:
        self._stops = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()

    def start(self, run: Callable[[], None]) -> None:
        """Run a function that returns when `wait` is False."""
        self._stops.acquire()
        self._ended.acquire()
        _thread.start_new_thread(self._run, (run,))

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            self._ended.release()

    def wait(self, interval_s: float) -> bool:
        """Wait for about this long; return False if the thread is to end.

        Not at regular intervals, which a regular script would meet at the same line every time. Not
        by the shared generator: the script's random numbers stay as they are.
        """
        return not self._stops.acquire(timeout=interval_s * _uniform(0.5, 1.5))

    def stop(self) -> None:
        """End the thread and wait for its end, at most a second."""
        if self._stops.locked() and not self._ended.acquire(blocking=False):
            self._stops.release()
            self._ended.acquire(timeout=1.0)


@dataclass
class StackSampler:
    """A thread that samples the traced thread of this process."""

    state: HookState
    take_of_loader: Callable[[FrameType | None], object]
    interval_s: float = INTERVAL_S
    _samples: list[_Sample] = field(default_factory=list)
    _kinds: dict[CodeType, tuple[bool, str | None]] = field(default_factory=dict)
    _thread: StoppableThread = field(default_factory=lambda: StoppableThread())

    def start(self) -> None:
        """Start the thread."""
        self._thread.start(self._run)

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()

    def _run(self) -> None:
        while self._thread.wait(self.interval_s):
            if self.state.full:
                steps, phase = self.state.steps, _phase(self.state)
                frame = sys._current_frames().get(self.state.thread)
                sample = self._sample(frame, phase)
                # The script may have gone on meanwhile, if this thread had to wait.
                if sample and (steps, phase) == (self.state.steps, _phase(self.state)):
                    self._add(sample)
                    if phase == "data":
                        self.take_of_loader(frame)

    def _sample(self, frame: FrameType | None, phase: str) -> _Sample | None:
        """Return what the script does; None if it waits for the tracer."""
        activity, depth, time_ns = None, 0, now_ns()
        while frame is not None and depth < _DEEPEST:
            code = frame.f_code
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = _kind(code.co_filename)
            of_script, known = kind
            if known is _OWN_WORK:
                return None
            activity = known if known == _IMPORT else activity or known
            if of_script:
                return _Sample(time_ns, phase, activity, code, frame.f_lasti)
            frame, depth = frame.f_back, depth + 1
        return _Sample(time_ns, phase, activity, None, 0)

    def _add(self, sample: _Sample) -> None:
        self._samples.append(sample)
        if len(self._samples) >= _MOST:
            del self._samples[::2]
            self.interval_s *= 2

    def times(self, spans: Iterable[Span], origin_ns: int) -> list[StackTime]:
        """Return the time of each line so far; epochs and evaluations are given."""
        return stack_times(self._samples, spans, origin_ns)


_OWN_WORK = "stepscope"
_IMPORT = "import"


def _kind(file: str) -> tuple[bool, str | None]:
    """Return whether a file is the script's own, and what a library's file is for."""
    if file.startswith(_OUR_FOLDER):  # hooks are transparent, flushing is no work of the script
        return False, _OWN_WORK if file == _TRACER else None
    if file.startswith("<frozen importlib"):
        return False, _IMPORT
    if file.startswith("<frozen") or file.startswith(_LIBRARY_FOLDERS):
        return False, next((what for part, what in _ACTIVITIES if part in file), None)
    return not file.startswith("<"), None


@functools.lru_cache(maxsize=4096)
def is_of_script(code: CodeType) -> bool:
    """Return whether code is the script's own, not a library's."""
    return _kind(code.co_filename)[0]


def _phase(state: HookState) -> str:
    """Return the phase that is open, by what the hooks are inside of."""
    if state.in_backward:
        return "backward"
    if state.in_step:
        return "optimizer"
    if state.calling is not None:
        return "forward"
    if state.busy:
        return "data"
    return "forward" if state.awaits_backward else "other"


# --- Names of samples


class Span(NamedTuple):
    """An epoch or an evaluation, in seconds from the run's start."""

    split: str
    start_s: float
    total_s: float


def stack_times(
    samples: Sequence[_Sample], spans: Iterable[Span], origin_ns: int
) -> list[StackTime]:
    """Return the time of each line of the script, by the part of the run; the longest first."""
    parts = Parts(spans)
    totals: dict[tuple[str, str | None, CodeType | None, int], list[float]] = {}
    for sample, took_s in zip(samples, _durations_s(samples), strict=True):
        where = parts.at(seconds(sample.time_ns - origin_ns)) or sample.phase
        key = (where, sample.activity, sample.code, sample.instruction)
        total = totals.setdefault(key, [0.0, 0])
        total[0] += took_s
        total[1] += 1
    named: dict[tuple[str, str | None, str | None, str | None], StackTime] = {}
    for (where, activity, code, instruction), (total_s, count) in totals.items():
        line, text = (None, None) if code is None else call_at(code, instruction)
        activity = activity or _activity_of(text)
        entry = named.setdefault(
            (where, activity, line, text),
            {
                "where": where,
                "activity": activity,
                "line": line,
                "code": text,
                "total_s": 0.0,
                "samples": 0,
            },
        )
        entry["total_s"] += total_s
        entry["samples"] += int(count)
    longest_first = sorted(named.values(), key=lambda each: each["total_s"], reverse=True)
    return longest_first[:_MOST_LINES]


def _durations_s(samples: Sequence[_Sample]) -> list[float]:
    """Return the time that each sample stands for: that since the one before.

    A call that holds the interpreter lock delays the sample, which then shows this very call.
    """
    if not samples:
        return []
    usual_s = seconds(samples[-1].time_ns - samples[0].time_ns) / max(len(samples) - 1, 1)
    gaps_s = (seconds(later.time_ns - each.time_ns) for each, later in pairwise(samples))
    return [usual_s, *gaps_s]


class Parts:
    """The parts of a run outside its training steps."""

    def __init__(self, spans: Iterable[Span]) -> None:
        ordered = sorted(spans, key=lambda span: span.start_s)
        self._evaluations = [span for span in ordered if span.split != "train"]
        self._epochs = []
        for span in ordered:
            if span.split == "train":
                end_s = span.start_s + span.total_s
                for each in self._evaluations:  # an epoch's own time leaves out evaluations
                    if span.start_s <= each.start_s < end_s:
                        end_s += each.total_s
                self._epochs.append((span.start_s, end_s))

    def at(self, time_s: float) -> str | None:
        """Return the part at a time; None inside an epoch."""
        if any(each.start_s <= time_s < each.start_s + each.total_s for each in self._evaluations):
            return "evaluation"
        if any(start_s <= time_s < end_s for start_s, end_s in self._epochs):
            return None
        if not self._epochs or time_s < self._epochs[0][0]:
            return "preparation"
        return "shutdown" if time_s >= self._epochs[-1][1] else "between epochs"


@functools.lru_cache(maxsize=4096)
def call_at(code: CodeType, instruction: int) -> tuple[str, str | None]:
    """Return the line of an instruction, such as `train.py:41`, and the text that runs."""
    begin = end = None
    lines = (line for start, stop, line in code.co_lines() if start <= instruction < stop and line)
    number = next(lines, code.co_firstlineno)
    if hasattr(code, "co_positions"):
        found = next(islice(code.co_positions(), instruction // 2, None), None)
        if found is not None and found[0] == found[1] == number:
            begin, end = found[2:]
    text = linecache.getline(code.co_filename, number)
    part = text.encode()[begin:end].decode(errors="replace")  # columns count bytes
    shown = _STRINGS.sub("'...'", " ".join(part.split()))  # a string may be a secret
    return f"{Path(code.co_filename).name}:{number}", shown[:_LONGEST_TEXT] or None


def _activity_of(text: str | None) -> str | None:
    return next((what for call, what in _CALLS if text and re.search(call, text)), None)

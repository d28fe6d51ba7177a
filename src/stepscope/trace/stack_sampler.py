"""Samples what the script does: the line that runs, some times a second.

A thread looks at the stack of the traced thread. It changes nothing in the script, and what a
sample costs does not depend on how often the script calls anything. Samples are kept as references
to code; `stack_times` names them when the script has ended.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import sysconfig
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from inspect import CO_GENERATOR
from itertools import accumulate, islice, takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NamedTuple

from stepscope.meter.clock import now_ns, seconds
from stepscope.trace.sampling_thread import INTERVAL_S, SamplingThread

if TYPE_CHECKING:
    from stepscope.records.types import StackTime
    from stepscope.trace.event_buffer import HookState

# A long run needs fewer samples: after `_MOST` every second one is dropped and the interval is
# doubled. 500 tell 10 % from 13 %.
_MOST = 1024
_DEEPEST = 200  # frames that are looked at
_MOST_CALLS = 16  # of the script's own frames that are kept
_LONGEST_TEXT = 80
_MOST_LINES = 200
_STRINGS = re.compile(r"""(["'])(?:\\.|(?!\1).)*(?:\1|$)""")

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
    ("nvidia/dali", "loading"),
    ("webdataset", "loading"),
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


_Call = tuple[CodeType, int]  # and the instruction


class _Sample(NamedTuple):
    time_ns: int
    took_ns: int  # since the sample before
    phase: str
    activity: str | None
    calls: tuple[_Call, ...]  # the script's own frames, the innermost first


class StackSampler:
    """Samples the traced thread of this process."""

    def __init__(
        self,
        state: HookState,
        take_of_loader: Callable[[FrameType | None], object],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._state = state
        self._take_of_loader = take_of_loader
        self._samples: list[_Sample] = []
        self._sampled_ns = 0
        self._thread = SamplingThread(self._look, interval_s)

    def start(self) -> None:
        """Start the thread."""
        self._sampled_ns = now_ns()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()

    def _look(self) -> None:
        state = self._state
        if not state.full:
            self._sampled_ns = now_ns()
            return
        steps, phase = state.steps, _phase(state)
        # No frame is kept: it would keep the script's variables alive.
        sample = self._sample(sys._current_frames().get(state.thread), phase)
        # The script may have gone on meanwhile, if this thread had to wait.
        if sample and (steps, phase) == (state.steps, _phase(state)):
            self._add(sample)
            if phase == "data":
                self._take_of_loader(sys._current_frames().get(state.thread))

    def _sample(self, frame: FrameType | None, phase: str) -> _Sample | None:
        """Return what the script does; None if it waits for the tracer."""
        activity, calls, time_ns = None, list[_Call](), now_ns()
        took_ns = time_ns - self._sampled_ns
        for _ in range(_DEEPEST):
            if frame is None or len(calls) == _MOST_CALLS:
                break
            of_script, known = _kind(frame.f_code.co_filename)
            if of_script:
                calls.append((frame.f_code, frame.f_lasti))
            elif not calls:
                if known is _OWN_WORK:
                    return None
                activity = known if known == _IMPORT else activity or known
            frame = frame.f_back
        return _Sample(time_ns, took_ns, phase, activity, tuple(calls))

    def _add(self, sample: _Sample) -> None:
        self._sampled_ns = sample.time_ns
        self._samples.append(sample)
        if len(self._samples) >= _MOST:
            pairs = zip(self._samples[::2], self._samples[1::2], strict=True)
            self._samples = [
                later._replace(took_ns=dropped.took_ns + later.took_ns) for dropped, later in pairs
            ]
            self._thread.interval_s *= 2

    def times(self, spans: Iterable[EpochSpan], origin_ns: int) -> list[StackTime]:
        """Return the time of each line by the part of the run, the longest first.

        The functions that are open while gradients are computed contain the training loop. A line
        of another function has the line of theirs that led to it as its `call`.
        """
        parts = Parts(spans)
        loop = {
            code for each in self._samples if each.phase == "backward" for code, _ in each.calls
        }
        found: dict[tuple[str | None, ...], StackTime] = {}
        for sample in self._samples:
            where = parts.at(seconds(sample.time_ns - origin_ns)) or sample.phase
            line = text = call = called = None
            if sample.calls:
                line, text = call_at(*sample.calls[0])
                outer = next((each for each in sample.calls if each[0] in loop), None)
                if outer not in (None, sample.calls[0]):
                    call, called = call_at(*outer)
            inside = takewhile(lambda code: code not in loop, (code for code, _ in sample.calls))
            activity = sample.activity
            if activity is None and sample.phase == "other" and any(map(_makes_batches, inside)):
                activity = "loading"
            activity = activity or _activity_of(called) or _activity_of(text)
            entry = found.setdefault(
                (where, activity, line, text, call),
                {
                    "where": where,
                    "activity": activity,
                    "line": line,
                    "code": text,
                    "call": call,
                    "called": called,
                    "total_s": 0.0,
                    "samples": 0,
                },
            )
            entry["total_s"] += seconds(sample.took_ns)
            entry["samples"] += 1
        longest_first = sorted(found.values(), key=lambda each: each["total_s"], reverse=True)
        return longest_first[:_MOST_LINES]


_OWN_WORK = "stepscope"
_IMPORT = "import"


@functools.lru_cache(maxsize=4096)
def _kind(file: str) -> tuple[bool, str | None]:
    """Return whether a file is the script's own, and what a library's file is for."""
    if file.startswith(_OUR_FOLDER):  # hooks are transparent, flushing is no work of the script
        return False, _OWN_WORK if file == _TRACER else None
    if file.startswith("<frozen importlib"):
        return False, _IMPORT
    if file.startswith("<frozen") or file.startswith(_LIBRARY_FOLDERS):
        return False, next((what for part, what in _ACTIVITIES if part in file), None)
    return not file.startswith("<"), None


def _makes_batches(code: CodeType) -> bool:
    """Return whether a function that the training loop leads to hands out what it iterates over."""
    return bool(code.co_flags & CO_GENERATOR) or code.co_name == "__next__"


def is_script_file(file: str) -> bool:
    """Return whether a file is the script's own, not a library's."""
    return _kind(file)[0]


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


class EpochSpan(NamedTuple):
    """An epoch with the evaluations inside it, or an evaluation, in the run's seconds."""

    split: str
    start_s: float
    end_s: float


class Parts:
    """The parts of a run outside its training steps."""

    def __init__(self, spans: Iterable[EpochSpan]) -> None:
        ordered = sorted(spans, key=lambda span: span.start_s)
        self._evaluations = _Cover([span for span in ordered if span.split != "train"])
        self._epochs = _Cover([span for span in ordered if span.split == "train"])

    def at(self, time_s: float) -> str | None:
        """Return the part at a time; None inside an epoch."""
        if self._evaluations.has(time_s):
            return "evaluation"
        if self._epochs.has(time_s):
            return None
        if not self._epochs.starts_s or time_s < self._epochs.starts_s[0]:
            return "preparation"
        return "shutdown" if time_s >= self._epochs.ends_s[-1] else "between epochs"


class _Cover:
    """The time that spans cover together; they are ordered by their start."""

    def __init__(self, spans: Sequence[EpochSpan]) -> None:
        self.starts_s = [span.start_s for span in spans]
        self.ends_s = list(accumulate((span.end_s for span in spans), max))

    def has(self, time_s: float) -> bool:
        begun = bisect_right(self.starts_s, time_s)
        return begun > 0 and time_s < self.ends_s[begun - 1]


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

"""What the loader does while it makes a batch: samples, transforms, reading, decoding, collating.

`TimedItems` times every sample of a map-style data set. `LoaderStacks` names what the process was
doing in samples of its stack (`trace.stack_sampler`): in a loader worker, or in the training
process if it loads the data itself. Neither changes the data set or its transforms.
"""

from __future__ import annotations

import atexit
import heapq
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.meter.clock import now_ns, seconds
from stepscope.trace.stack_sampler import INTERVAL_S, StoppableThread, call_at, is_of_script

if TYPE_CHECKING:
    from stepscope.records.types import LoaderFigures, LoaderPart

_SLOW_SAMPLES = 8  # the slowest that are kept
_SLOW_BITS = 3  # a sample that takes 2**3 times the median is slow
_SEND_EVERY_NS = 250_000_000
_DEEPEST = 60

READ, DECODE, TRANSFORM, COLLATE, DATASET = "read", "decode", "transform", "collate", "dataset"

# By the file of a frame, the innermost first.
_BY_FILE = (
    ("torch/utils/data/_utils/collate.py", COLLATE),
    ("PIL/ImageFile.py", DECODE),
    ("PIL/JpegImagePlugin.py", DECODE),
    ("PIL/PngImagePlugin.py", DECODE),
    ("imageio", DECODE),
    ("torchvision/io", DECODE),
    ("h5py", READ),
    ("zipfile.py", READ),
    ("tarfile.py", READ),
    ("urllib", READ),
    ("botocore", READ),
)
# By the text of the call that runs, in the script or in a library.
_BY_CALL = (
    (r"\bImage\.open\(|\bimread\(|\bimdecode\(|\bdecode_(jpeg|png|image)\(", DECODE),
    (r"\.convert\(|\bread_image\(|\bsoundfile\.|\btorchaudio\.load\(", DECODE),
    (r"\bopen\(|\.read(_bytes|_text|line|lines)?\(|\b(np|numpy|torch)\.load\(|\bmmap\b", READ),
    (r"\bcollate\w*\(", COLLATE),
)


class LoaderWork(NamedTuple):
    """What a process did for its loader since the last message: sent along with a batch."""

    samples: int
    samples_ns: int
    by_size: dict[int, int]  # samples by the number of bits of their time
    slowest: list[tuple[int, Any]]  # nanoseconds, index
    stacks: dict[tuple[str, str, str | None], int]  # kind, name, line: samples of the stack


@dataclass
class ItemTimes:
    """The times of single samples."""

    samples: int = 0
    samples_ns: int = 0
    by_size: dict[int, int] = field(default_factory=dict)
    slowest: list[tuple[int, Any]] = field(default_factory=list)
    _bar_ns: int = 0

    def add(self, index: Any, took_ns: int) -> None:
        """Add a sample."""
        self.samples += 1
        self.samples_ns += took_ns
        size = took_ns.bit_length()
        self.by_size[size] = self.by_size.get(size, 0) + 1
        if took_ns > self._bar_ns:
            self._keep(took_ns, index)

    def _keep(self, took_ns: int, index: Any) -> None:
        entry = (took_ns, index if isinstance(index, int | str) else repr(index)[:80])
        self.slowest.append(entry)
        if len(self.slowest) > _SLOW_SAMPLES:
            self.slowest = heapq.nlargest(_SLOW_SAMPLES, self.slowest, key=lambda each: each[0])
            self._bar_ns = self.slowest[-1][0]

    def merge(self, work: LoaderWork) -> None:
        """Add the samples of another process."""
        self.samples += work.samples
        self.samples_ns += work.samples_ns
        for size, count in work.by_size.items():
            self.by_size[size] = self.by_size.get(size, 0) + count
        for took_ns, index in work.slowest:
            self._keep(took_ns, index)

    def median_s(self) -> float | None:
        """Return about the median: the middle of its power of two."""
        size = self._median_size()
        return None if size is None else seconds(1) * 0.75 * 2**size

    def _median_size(self) -> int | None:
        seen = 0
        for size, count in sorted(self.by_size.items()):
            seen += count
            if 2 * seen >= self.samples:
                return size
        return None

    def slow_share(self) -> float:
        """Return the share of the time of samples that take over eight times the median."""
        median = self._median_size()
        if median is None:
            return 0.0
        times = {size: count * 0.75 * 2**size for size, count in self.by_size.items()}
        slow = sum(took for size, took in times.items() if size > median + _SLOW_BITS)
        return float(slow / sum(times.values()))


class TimedItems:
    """A map-style data set that times each sample; everything else is the data set's own."""

    def __init__(self, dataset: Any, times: ItemTimes) -> None:
        self._dataset = dataset
        self._times = times

    def __getitem__(self, index: Any) -> Any:
        began_ns = now_ns()
        item = self._dataset[index]
        self._times.add(index, now_ns() - began_ns)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


@dataclass
class LoaderStacks:
    """Names what makes a batch, in samples of the stack below the loader's `fetch`."""

    counts: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    _names: dict[tuple[tuple[CodeType, int], ...], tuple[str, str, str | None]] = field(
        default_factory=dict
    )

    def take(self, frame: FrameType | None) -> bool:
        """Count a sample; return False if the process makes no batch."""
        chain: list[tuple[CodeType, int]] = []
        while frame is not None and len(chain) < _DEEPEST:
            if frame.f_code.co_name == "fetch" and frame.f_code.co_filename.endswith(_FETCH):
                break
            chain.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        else:
            return False
        key = tuple(chain)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = name_of(key)
        self.counts[name] = self.counts.get(name, 0) + 1
        return True


_FETCH = "torch/utils/data/_utils/fetch.py"


def name_of(chain: Sequence[tuple[CodeType, int]]) -> tuple[str, str, str | None]:
    """Return kind, name and line of a stack below `fetch`, the innermost frame first."""
    line = next((call_at(*each)[0] for each in chain if is_of_script(each[0])), None)
    transform = _transform_of(chain)
    for code, instruction in chain:
        kind = next((kind for part, kind in _BY_FILE if part in code.co_filename), None)
        text = call_at(code, instruction)[1] or ""
        kind = kind or next((kind for call, kind in _BY_CALL if re.search(call, text)), None)
        if kind is not None and not (transform and kind != COLLATE):
            return kind, kind, line
        if is_of_script(code):
            break
    if transform:
        return TRANSFORM, transform, line
    if not any(_is_item(code) for code, _ in chain):
        return COLLATE, COLLATE, line
    return DATASET, "__getitem__", line


def _is_item(code: CodeType) -> bool:
    return code.co_name in ("__getitem__", "__getitems__", "__next__", "__iter__")


def _transform_of(chain: Sequence[tuple[CodeType, int]]) -> str | None:
    """Return the transform that runs: the call below a Compose, or below `self.transform(...)`."""
    outermost_first = list(reversed(chain))
    found = None
    for place, (code, instruction) in enumerate(outermost_first):
        is_chain = code.co_name in ("__call__", "forward") and "transforms" in code.co_names
        text = call_at(code, instruction)[1] or ""
        if not is_chain and not re.search(r"\btransforms?\w*\(|_transforms?\(", text):
            continue
        inner = next(
            (
                each
                for each, _ in outermost_first[place + 1 :]
                if not each.co_filename.endswith("torch/nn/modules/module.py")
            ),
            None,
        )
        if inner is None:
            found = found or text.partition("(")[0] or "transform"
        elif not (inner.co_name in ("__call__", "forward") and "transforms" in inner.co_names):
            found = _short_name(inner)
    return found


def _short_name(code: CodeType) -> str:
    """Return the class of a method, or the name of a function."""
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    owner, _, method = name.rpartition(".")
    return owner.rpartition(".")[2] if method in ("__call__", "forward") and owner else name


@dataclass
class LoaderProfile:
    """The profile of one process: the training process, or a worker that sends it along."""

    times: ItemTimes = field(default_factory=ItemTimes)
    stacks: LoaderStacks = field(default_factory=LoaderStacks)
    _sent_ns: int = 0

    def watch(self, fetcher: Any) -> None:
        """Time the samples of a fetcher for a map-style data set, once."""
        dataset = getattr(fetcher, "dataset", None)
        if getattr(fetcher, "auto_collation", False) and not isinstance(dataset, TimedItems):
            fetcher.dataset = TimedItems(dataset, self.times)

    def sample_this_thread(self) -> None:
        """Sample the stack of this thread for as long as the process lives: in a worker."""
        sampled, thread = threading.get_ident(), StoppableThread()

        def run() -> None:
            while thread.wait(INTERVAL_S):
                self.stacks.take(sys._current_frames().get(sampled))

        thread.start(run)
        atexit.register(thread.stop)

    def work_to_send(self) -> LoaderWork | None:
        """Return what was done since the last message, a few times a second."""
        now = now_ns()
        if now - self._sent_ns < _SEND_EVERY_NS:
            return None
        self._sent_ns = now
        times, counts = self.times, self.stacks.counts
        work = LoaderWork(
            times.samples, times.samples_ns, times.by_size.copy(), times.slowest, counts.copy()
        )
        times.__init__()  # type: ignore[misc]
        counts.clear()
        return work

    def merge(self, work: LoaderWork) -> None:
        """Add what a worker did."""
        self.times.merge(work)
        for name, count in work.stacks.items():
            self.stacks.counts[name] = self.stacks.counts.get(name, 0) + count

    def figures(self) -> LoaderFigures | None:
        """Return the profile as `run.json` keeps it; None if nothing was seen."""
        times, counts = self.times, self.stacks.counts
        total = sum(counts.values())
        if not times.samples and not total:
            return None
        parts: list[LoaderPart] = [
            {"kind": kind, "name": name, "line": line, "share": count / total, "samples": count}
            for (kind, name, line), count in sorted(
                counts.items(), key=lambda each: each[1], reverse=True
            )
        ]
        return {
            "samples": times.samples,
            "sample_s": seconds(times.samples_ns) / times.samples if times.samples else None,
            "median_sample_s": times.median_s(),
            "slow_share": times.slow_share(),
            "slow_samples": [
                {"index": index, "took_s": seconds(took_ns)}
                for took_ns, index in sorted(times.slowest, key=lambda each: each[0], reverse=True)[
                    :_SLOW_SAMPLES
                ]
            ],
            "parts": parts,
        }

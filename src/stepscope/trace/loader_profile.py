"""What the loader does while it makes a batch: samples, transforms, reading, decoding, collating.

`TimedItems` times every sample of a map-style data set. `LoaderStacks` names what the process was
doing in samples of its stack (`trace.stack_sampler`): in a loader worker, or in the training
process if it loads the data itself. Neither changes the data set or its transforms.
"""

from __future__ import annotations

import heapq
import linecache
import operator
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.meter.clock import now_ns, seconds
from stepscope.trace.stack_sampler import (
    SamplingThread,
    call_at,
    is_of_script,
)

if TYPE_CHECKING:
    from stepscope.records.types import LoaderFigures, LoaderPart

_SLOW_SAMPLES = 32  # the slowest that are kept
_SHOWN_SAMPLES = 8
_SLOW_BITS = 3  # a sample that takes 2**3 times the median is slow
_MOST_SLOW = 0.1  # of the samples: more of them are no exception
_REPEATED = 0.5  # of the slowest samples: the same index was slow in another epoch too
# No busy machine keeps a process off its CPUs for as long as this, many times.
_SURELY_SLOW_NS = 50_000_000
_SEND_EVERY_NS = 250_000_000
_TRIED = 256  # samples that are timed at least
_QUICK_NS = 20_000
_DEEPEST = 60
_MOST_CHAINS = 1000
_LONGEST_INDEX = 80

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


LoaderName = tuple[str, str, str | None]  # kind, name and line


class LoaderWork(NamedTuple):
    """What a process did for its loader since the last message: sent along with a batch."""

    samples: int
    samples_ns: int
    by_size: dict[int, int]  # samples by the number of bits of their time
    slowest: list[tuple[int, int | str]]  # nanoseconds, index
    stacks: dict[LoaderName, int]  # samples of the stack


@dataclass
class ItemTimes:
    """The times of single samples."""

    samples: int = 0
    samples_ns: int = 0
    by_size: dict[int, int] = field(default_factory=dict)
    slowest: list[tuple[int, int | str]] = field(default_factory=list)
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
        self.slowest.append((took_ns, _plain(index)))
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
            if took_ns > self._bar_ns:
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
        """Return the share of the time of a few samples that take over eight times the median.

        Other processes slow samples down as well, but not the same ones in every epoch, and not
        for as long.
        """
        median = self._median_size()
        if median is None:
            return 0.0
        least = median + _SLOW_BITS
        if not self._same_samples_are_slow():
            least = max(least, _SURELY_SLOW_NS.bit_length())
        slow = {size: count for size, count in self.by_size.items() if size > least}
        if sum(slow.values()) > _MOST_SLOW * self.samples:
            return 0.0
        return _rough_time(slow) / _rough_time(self.by_size)

    def _same_samples_are_slow(self) -> bool:
        seen = Counter(index for _, index in self.slowest)
        repeated = sum(count for count in seen.values() if count > 1)
        return repeated >= _REPEATED * len(self.slowest)


def _rough_time(by_size: dict[int, int]) -> float:
    return sum(count * 0.75 * 2.0**size for size, count in by_size.items())


def _plain(index: Any) -> int | str:
    """Return the index of a sample as JSON can hold it."""
    if isinstance(index, str):
        return str(index)[:_LONGEST_INDEX]
    try:
        return operator.index(index)
    except Exception:  # of the script's own class
        return f"a {type(index).__name__}"


class TimedItems:
    """A map-style data set that times each sample; everything else is the data set's own.

    Samples that take microseconds, as from memory, are not timed for long: the clock would take a
    good part of them.
    """

    def __init__(self, dataset: Any, profile: LoaderProfile, fetcher: Any) -> None:
        self._dataset = dataset
        self._profile = profile
        self._fetcher = fetcher
        self._untried = _TRIED
        self._tried_ns = 0

    def __getitem__(self, index: Any) -> Any:
        began_ns = now_ns()
        item = self._dataset[index]
        took_ns = now_ns() - began_ns
        self._profile.times.add(index, took_ns)
        if self._untried:
            self._untried -= 1
            self._tried_ns += took_ns
            if not self._untried and self._tried_ns < _TRIED * _QUICK_NS:
                self._profile.quick.add(id(self._dataset))
                self._fetcher.dataset = self._dataset
        return item

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._dataset, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._dataset)


@dataclass
class LoaderStacks:
    """Names what makes a batch, in samples of the stack from the loader's `fetch` inwards.

    A sample is kept as references to code and named later, since reading source takes long.
    """

    # The samples of each stack, by the addresses of its code: hashing code takes long.
    _chains: dict[tuple[int, ...], _CountedChain] = field(default_factory=dict)
    named: dict[LoaderName, int] = field(default_factory=dict)

    def take(self, frame: FrameType | None) -> bool:
        """Count a sample; return False if the process makes no batch."""
        chain: list[tuple[CodeType, int]] = []
        key: list[int] = []
        while frame is not None and len(chain) < _DEEPEST:
            code, instruction = frame.f_code, frame.f_lasti
            chain.append((code, instruction))
            key += (id(code), instruction)
            if code.co_name == "fetch" and code.co_filename.endswith(_FETCH):
                break
            frame = frame.f_back
        else:
            return False
        known = self._chains.setdefault(tuple(key), _CountedChain(chain))
        known.samples += 1
        if len(self._chains) >= _MOST_CHAINS:
            del frame
            self.counts()
        return True

    def counts(self) -> dict[LoaderName, int]:
        """Return the samples so far by kind, name and line."""
        chains, self._chains = self._chains, {}
        for known in list(chains.values()):
            self.add(name_of(known.chain), known.samples)
        return self.named

    def add(self, name: LoaderName, samples: int) -> None:
        """Add samples of another process."""
        self.named[name] = self.named.get(name, 0) + samples


@dataclass
class _CountedChain:
    chain: list[tuple[CodeType, int]]
    samples: int = 0


_FETCH = "torch/utils/data/_utils/fetch.py"


def name_of(chain: Sequence[tuple[CodeType, int]]) -> LoaderName:
    """Return kind, name and line of a stack, the innermost frame first, `fetch` last."""
    line = next((call_at(*each)[0] for each in chain if is_of_script(each[0])), None)
    kind = next((kind for code, _ in chain if (kind := _kind_of_file(code.co_filename))), None)
    transform = _transform_of(chain)
    if kind is not None and not (transform and kind == READ):
        return kind, kind, line
    if transform:
        return TRANSFORM, transform, line
    kind = next((kind for each in chain if (kind := _kind_of_call(*each))), None)
    if kind is not None:
        return kind, kind, line
    return DATASET, "__getitem__", line


def _kind_of_file(file: str) -> str | None:
    return next((kind for part, kind in _BY_FILE if part in file), None)


def _kind_of_call(code: CodeType, instruction: int) -> str | None:
    """Return the kind of the call that runs, or of a `with open(...)` around it."""
    texts = [call_at(code, instruction)[1] or ""]
    if is_of_script(code):
        texts += _withs_around(code, instruction)
    return next((kind for text in texts for call, kind in _BY_CALL if re.search(call, text)), None)


def _withs_around(code: CodeType, instruction: int) -> Iterator[str]:
    """Yield the `with` statements around the line that runs, by their indentation."""
    number = int(call_at(code, instruction)[0].rpartition(":")[2])
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno : number]
    depth = _depth(lines.pop()) if lines else 0
    for text in reversed(lines):
        if text.strip() and _depth(text) < depth:
            depth = _depth(text)
            if text.lstrip().startswith(("with ", "async with ")):
                yield text


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip())


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
    quick: set[int] = field(default_factory=set)  # data sets by id whose samples take microseconds
    _sent_ns: int = 0

    def watch(self, fetcher: Any) -> None:
        """Time the samples of a fetcher for a map-style data set, once."""
        dataset = getattr(fetcher, "dataset", None)
        is_single = getattr(fetcher, "auto_collation", False) and id(dataset) not in self.quick
        if is_single and not hasattr(fetcher, "dataset_iter") and type(dataset) is not TimedItems:
            fetcher.dataset = TimedItems(dataset, self, fetcher)

    def sample_this_thread(self) -> None:
        """Sample the stack of this thread for as long as the process lives: in a worker."""
        sampled = threading.get_ident()
        SamplingThread(lambda: self.stacks.take(sys._current_frames().get(sampled))).start()

    def work_to_send(self) -> LoaderWork | None:
        """Return what was done since the last message, a few times a second."""
        now = now_ns()
        if now - self._sent_ns < _SEND_EVERY_NS:
            return None
        self._sent_ns = now
        times, stacks, self.stacks.named = self.times, self.stacks.counts(), {}
        work = LoaderWork(times.samples, times.samples_ns, times.by_size, times.slowest, stacks)
        times.__init__()  # type: ignore[misc]
        return work

    def merge(self, work: LoaderWork) -> None:
        """Add what a worker did."""
        self.times.merge(work)
        for name, samples in work.stacks.items():
            self.stacks.add(name, samples)

    def figures(self) -> LoaderFigures | None:
        """Return the profile as `run.json` keeps it; None if nothing was seen."""
        times, counts = self.times, self.stacks.counts()
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
                    :_SHOWN_SAMPLES
                ]
            ],
            "parts": parts,
        }

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
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from stepscope.meter.clock import now_ns, seconds
from stepscope.trace.sampling_thread import SamplingThread
from stepscope.trace.stack_sampler import call_at, is_script_file

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


@dataclass
class LoaderWork:
    """What a process did for its loader: the times of single samples, and samples of its stack.

    A worker sends it along with a batch.
    """

    samples_ns: int = 0
    by_size: Counter[int] = field(default_factory=Counter)  # samples by the bits of their time
    slowest: list[tuple[int, int | str]] = field(default_factory=list)  # nanoseconds, index
    stacks: Counter[LoaderName] = field(default_factory=Counter)
    _bar_ns: int = 0

    def add(self, index: Any, took_ns: int) -> None:
        """Add a sample."""
        self.samples_ns += took_ns
        self.by_size[took_ns.bit_length()] += 1
        if took_ns > self._bar_ns:
            self._keep([(took_ns, _plain(index))])

    def _keep(self, slow: list[tuple[int, int | str]]) -> None:
        self.slowest += slow
        if len(self.slowest) > _SLOW_SAMPLES:
            self.slowest = heapq.nlargest(_SLOW_SAMPLES, self.slowest, key=lambda each: each[0])
            self._bar_ns = self.slowest[-1][0]

    def merge(self, other: LoaderWork) -> None:
        """Add the work of another process."""
        self.samples_ns += other.samples_ns
        self.by_size.update(other.by_size)
        self.stacks.update(other.stacks)
        self._keep(other.slowest)

    def median_size(self) -> int:
        """Return the number of bits of the median time."""
        sizes = sorted(self.by_size)
        seen = accumulate(self.by_size[size] for size in sizes)
        return sizes[bisect_left(list(seen), self.by_size.total() / 2)]

    def slow_share(self) -> float:
        """Return the share of the time of a few samples that take over eight times the median.

        Other processes slow samples down as well, but not the same ones in every epoch, and not
        for as long.
        """
        least = self.median_size() + _SLOW_BITS
        seen = Counter(index for _, index in self.slowest)
        repeated = sum(count for count in seen.values() if count > 1)
        if repeated < _REPEATED * len(self.slowest):
            least = max(least, _SURELY_SLOW_NS.bit_length())
        slow = {size: count for size, count in self.by_size.items() if size > least}
        if sum(slow.values()) > _MOST_SLOW * self.by_size.total():
            return 0.0
        return _rough_time(slow) / _rough_time(self.by_size)


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
        self._profile.work.add(index, took_ns)
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
class _CountedChain:
    chain: list[tuple[CodeType, int]]
    samples: int = 0


_FETCH = "torch/utils/data/_utils/fetch.py"
_MODULE = "torch/nn/modules/module.py"


def name_of(chain: Sequence[tuple[CodeType, int]]) -> LoaderName:
    """Return kind, name and line of a stack, the innermost frame first, `fetch` last."""
    line = next((call_at(*each)[0] for each in chain if is_script_file(each[0].co_filename)), None)
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
    if is_script_file(code.co_filename):
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
    frames = [each for each in reversed(chain) if not each[0].co_filename.endswith(_MODULE)]
    found = None
    for (code, instruction), inner in zip_longest(frames, (code for code, _ in frames[1:])):
        text = call_at(code, instruction)[1] or ""
        if not _is_compose(code) and not re.search(r"\btransforms?\w*\(|_transforms?\(", text):
            continue
        if inner is None:
            found = found or text.partition("(")[0] or "transform"
        elif not _is_compose(inner):
            found = _short_name(inner)
    return found


def _is_compose(code: CodeType) -> bool:
    return code.co_name in ("__call__", "forward") and "transforms" in code.co_names


def _short_name(code: CodeType) -> str:
    """Return the class of a method, or the name of a function."""
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    owner, _, method = name.rpartition(".")
    return owner.rpartition(".")[2] if method in ("__call__", "forward") and owner else name


@dataclass
class LoaderProfile:
    """The profile of one process: the training process, or a worker that sends it along."""

    work: LoaderWork = field(default_factory=LoaderWork)
    quick: set[int] = field(default_factory=set)  # data sets by id whose samples take microseconds
    _sent_ns: int = 0
    # The samples of each stack, by the addresses of its code: hashing code takes long. They are
    # named later, since reading source takes long as well.
    _chains: dict[tuple[int, ...], _CountedChain] = field(default_factory=dict)

    def watch(self, fetcher: Any) -> None:
        """Time the samples of a fetcher for a map-style data set, once."""
        dataset = getattr(fetcher, "dataset", None)
        is_single = getattr(fetcher, "auto_collation", False) and id(dataset) not in self.quick
        if is_single and not hasattr(fetcher, "dataset_iter") and type(dataset) is not TimedItems:
            fetcher.dataset = TimedItems(dataset, self, fetcher)

    def sample_this_thread(self) -> None:
        """Sample the stack of this thread for as long as the process lives: in a worker."""
        sampled = threading.get_ident()
        SamplingThread(lambda: self.take_stack(sys._current_frames().get(sampled))).start()

    def take_stack(self, frame: FrameType | None) -> None:
        """Count a sample of the stack from the loader's `fetch` inwards, if it makes a batch."""
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
            return
        known = self._chains.setdefault(tuple(key), _CountedChain(chain))
        known.samples += 1
        if len(self._chains) >= _MOST_CHAINS:
            del frame
            self._name_stacks()

    def _name_stacks(self) -> None:
        """Count the samples so far by kind, name and line."""
        chains, self._chains = self._chains, {}
        for known in list(chains.values()):
            self.work.stacks[name_of(known.chain)] += known.samples

    def work_to_send(self) -> LoaderWork | None:
        """Return what was done since the last message, a few times a second."""
        now = now_ns()
        if now - self._sent_ns < _SEND_EVERY_NS:
            return None
        self._sent_ns = now
        self._name_stacks()
        work, self.work = self.work, LoaderWork()
        return work

    def figures(self) -> LoaderFigures | None:
        """Return the profile as `run.json` keeps it; None if nothing was seen."""
        self._name_stacks()
        work = self.work
        samples, stacks = work.by_size.total(), work.stacks.total()
        if not samples and not stacks:
            return None
        parts: list[LoaderPart] = [
            {"kind": kind, "name": name, "line": line, "share": count / stacks, "samples": count}
            for (kind, name, line), count in work.stacks.most_common()
        ]
        slowest = sorted(work.slowest, key=lambda each: each[0], reverse=True)[:_SHOWN_SAMPLES]
        return {
            "samples": samples,
            "sample_s": seconds(work.samples_ns) / samples if samples else None,
            # About the median: the middle of its power of two.
            "median_sample_s": seconds(1) * 0.75 * 2 ** work.median_size() if samples else None,
            "slow_share": work.slow_share() if samples else 0.0,
            "slow_samples": [
                {"index": index, "took_s": seconds(took_ns)} for took_ns, index in slowest
            ],
            "parts": parts,
        }

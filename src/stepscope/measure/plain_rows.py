"""The rows of many plain steps at once, column by column, and their lines.

A script that trains a small network makes hundreds of steps a second. Making an object of each, and
a line of that, took more than half of the time in which events are settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, repeat

from stepscope.measure.rows import SECOND_NS, Load, StepRow, load_of_step
from stepscope.records import schema

# The line of most rows: on a host, with the loader's account, nothing as long as a second. Then a
# nanosecond is the ninth digit, and whole numbers are written in half the time.
_NS = "0.%09d"
_LINE = f"%d,%d,%s,%d{f',{_NS}' * 8},%r,%s,,,,,,%s,%d,full,"


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Steps of one epoch that followed each other on the host; the first has number `first`."""

    origin_ns: int  # when the record begins
    epoch: int
    first: int
    begins_ns: Sequence[int]
    samples: Sequence[int | None]
    spent: Sequence[Sequence[int]]  # by phase
    steps_ns: Sequence[int]
    loads: Sequence[Load | None]
    losses: Sequence[float | None]
    detail: str
    communication_s: Sequence[float | None]

    def __iter__(self) -> Iterator[StepRow]:
        for number, begin_ns, samples, spent, step_ns, load, loss, communication_s in zip(
            count(self.first),
            self.begins_ns,
            self.samples,
            zip(*self.spent, strict=True),
            self.steps_ns,
            self.loads,
            self.losses,
            self.communication_s,
            strict=False,
        ):
            loads = [] if load is None else [load]
            yield StepRow(
                *(self.epoch, number, begin_ns - self.origin_ns, samples, list(spent), step_ns),
                *(load_of_step(loads, self.origin_ns), loss, None, self.detail, communication_s),
            )

    def __str__(self) -> str:
        return self._lines() or "\n".join(map(str, self))

    def _lines(self) -> str | None:
        """Return the lines, or None where one of them is not like most."""
        loads = [load for load in self.loads if load is not None]
        whole = len(loads) == len(self.loads) and None not in self.losses
        whole = whole and None not in self.samples
        alone = all(seconds is None for seconds in self.communication_s)
        if not whole or not alone or self.detail != schema.FULL:
            return None
        workers, load_starts_ns, loads_ns, cpus_ns = zip(*loads, strict=True)
        longest_cpu_ns = max((ns for ns in cpus_ns if ns is not None), default=0)
        if max(max(self.steps_ns), max(loads_ns), longest_cpu_ns) >= SECOND_NS:
            return None
        starts = self._since_origin(self.begins_ns)
        made_when_fetched = load_starts_ns == tuple(self.begins_ns)
        data, *others = self.spent
        rows = zip(
            repeat(self.epoch),
            count(self.first),
            starts,
            self.samples,
            data,
            loads_ns,
            *others,
            self.steps_ns,
            self.losses,
            ["" if ns is None else _NS % ns for ns in cpus_ns],
            starts if made_when_fetched else self._since_origin(load_starts_ns),
            workers,
            strict=False,
        )
        # One format for all of them takes less time than one for each.
        lines = "\n".join([_LINE] * len(self.steps_ns))
        return lines % tuple(chain.from_iterable(rows))

    def _since_origin(self, times_ns: Sequence[int]) -> list[str]:
        origin_ns = self.origin_ns
        return ["%.9f" % ((ns - origin_ns) * 1e-9) for ns in times_ns]

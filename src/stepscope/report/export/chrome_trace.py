"""A run as a trace in the Chrome Trace Event Format, for Perfetto and chrome://tracing.

Each training (or rank) is a process, its device another. The blocks of one thread must nest, and
Perfetto (v52) drops a block that overlaps the next by a nanosecond of its own rounding. Hence all
times are whole ticks of an eighth of a microsecond, which are exact in binary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from typing_extensions import TypedDict

from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import RunEvent
from stepscope.report.export import nothing_recorded

FILE = "trace.json"

Args = dict[str, Any]  # what a block shows when it is selected: any columns of its row
_Block = tuple[str, int, int | None, Args]  # name, begin and end in ticks; an instant has no end


class TraceEvent(TypedDict, total=False):
    """An event of the format; times are in microseconds."""

    ph: str
    pid: int
    tid: int
    cat: str
    name: str
    ts: float
    dur: float
    s: str
    args: Args


TICKS_PER_US = 8
_TICKS_PER_S = TICKS_PER_US * 1_000_000
_LONGEST_S = 1e9  # thirty years: no valid time is later
_PIECE_EVENTS = 4096


# Counters that show a column unchanged: name, unit, column.
_GAUGES = (
    ("memory, proportional (pss)", "bytes", "pss_bytes"),
    ("memory, resident (rss)", "bytes", "rss_bytes"),
    ("device memory", "bytes", "device_memory_bytes"),
    ("device busy", "%", "device_percent"),
    ("power", "W", "power_w"),
)
# Counters that show the growth of a column: CPU seconds per second; 100 % is one CPU.
_CPU_SHARES = (
    ("CPU of the training process", "main_cpu_s"),
    ("CPU of the workers", "workers_cpu_s"),
)

# Threads, in the order of display. Those of the workers begin with _WORKERS.
_EPOCHS, _STEPS, _PHASES, _EVENTS, _WORKERS = 1, 2, 3, 4, 10


class Span(NamedTuple):
    """A row of a table on its thread, in ticks."""

    begin: int
    end: int
    row: int


def encode(run: Run) -> Iterator[tuple[str, int]]:
    """Yield the trace's text in pieces, each with its number of events."""
    encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
    remaining = events(run)
    before = '{"traceEvents":[\n'
    while piece := list(islice(remaining, _PIECE_EVENTS)):
        yield before + encoder.encode(piece)[1:-1], len(piece)
        before = ",\n"
    about = {name: run.info.get(name) for name in ("id", "name", "kind", "status")}
    known = {name: _plain(value) for name, value in about.items() if value is not None}
    yield f'\n],"displayTimeUnit":"ms","otherData":{encoder.encode(known)}}}\n', 0


def events(run: Run) -> Iterator[TraceEvent]:
    """Yield the events of a run; those of one thread or counter are ordered by time."""
    folders = [each for each in run.path.glob("ranks/*") if each.name.isdecimal()]
    folders.sort(key=lambda folder: int(folder.name))
    ranks = [(f"rank {int(each.name)}", Run(each, run.info)) for each in folders]
    ranks = ranks or [("training", run)]
    if not any(len(rank.steps) for _, rank in ranks):
        raise nothing_recorded(run, "training step")
    happened = run.events
    for number in range(len(ranks)):
        name, rank = ranks.pop(0)  # the tables of one rank are in memory at a time
        yield from _process(2 * number + 1, name, rank, happened if number == 0 else [])


def _process(pid: int, name: str, run: Run, happened: list[RunEvent]) -> Iterator[TraceEvent]:
    steps = run.steps
    spans = in_a_row(steps["start_s"], steps["step_s"])
    yield from _named(pid, name)
    yield from _thread(pid, _EPOCHS, "epochs", _epochs(run.epochs, steps["epoch"], spans))
    yield from _thread(pid, _STEPS, "steps", _steps(steps, spans))
    yield from _thread(pid, _PHASES, "phases", _phases(steps, spans))
    if happened:
        yield from _thread(pid, _EVENTS, "events", _instants(happened))
    yield from _loading(pid, steps)
    if any(value is not None for value in steps["idle_device_s"]):
        yield from _named(pid + 1, "device" if name == "training" else f"{name}, device")
        yield from _thread(pid + 1, _PHASES, "device phases", _device(steps, spans))
    yield from _counters(pid, run.telemetry)


def _epochs(
    epochs: Table, epoch_of_step: Sequence[int | None], steps: list[Span]
) -> Iterator[_Block]:
    """Yield every epoch; one whose row is not written yet is derived from its steps."""
    trained: dict[int | None, tuple[int, int]] = {}
    for begin, end, step in steps:
        first, _ = trained.setdefault(epoch_of_step[step], (begin, end))
        trained[epoch_of_step[step]] = (first, end)
    rows = list(epochs.rows())
    spans: list[Span] = []
    for number, row in enumerate(rows):
        span = _span(row.get("start_s"), row.get("total_s"), number)
        if span is None:
            continue
        if row.get("split") == "train":
            # `total_s` excludes an evaluation inside the epoch, and the pause before a resume.
            _, last = trained.pop(row.get("epoch"), (0, 0))
            span = span._replace(end=max(span.end, last))
        spans.append(span)
    for epoch, (begin, end) in trained.items():
        spans.append(Span(begin, end, len(rows)))
        rows.append({"epoch": epoch, "split": "train", "unfinished": True})
    for span in nested(spans):
        row = rows[span.row]
        epoch, split = row.get("epoch"), row.get("split")
        name = f"{split} before training" if epoch == 0 else f"{split} after epoch {epoch}"
        if split == "train":
            name = f"epoch {epoch}" + (", unfinished" if row.get("unfinished") else "")
        yield name, span.begin, span.end, _known(row)


def _steps(steps: Table, spans: list[Span]) -> Iterator[_Block]:
    shown = {name: steps[name] for name in ("epoch", "step", "samples", "loss", "detail")}
    for begin, end, row in spans:
        args = _known({name: column[row] for name, column in shown.items()})
        yield f"step {args.get('step', '?')}", begin, end, args


def _phases(steps: Table, spans: list[Span]) -> Iterator[_Block]:
    columns = [steps[f"{phase}_s"] for phase in schema.PHASES]
    detail = steps["detail"]
    for begin, end, row in spans:
        if detail[row] not in (schema.FULL, None):
            continue
        lengths = [column[row] for column in columns]
        for phase, since, until in lay_out(schema.PHASES, lengths, begin, end):
            yield phase, since, until, {}


def _device(steps: Table, spans: list[Span]) -> Iterator[_Block]:
    """Lay out the device's steps end to end: it may run behind the host, never ahead."""
    columns = [steps[f"{phase}_device_s"] for phase in schema.DEVICE_PHASES]
    epochs, numbers = steps["epoch"], steps["step"]
    at = 0
    for begin, _, row in spans:
        lengths = [column[row] for column in columns]
        args = _known({"epoch": epochs[row], "step": numbers[row]})
        for phase, since, until in lay_out(schema.DEVICE_PHASES, lengths, max(at, begin)):
            yield phase, since, until, args
            at = until


def _loading(pid: int, steps: Table) -> Iterator[TraceEvent]:
    shown = {name: steps[name] for name in ("epoch", "step", "load_s", "load_cpu_s")}
    starts, lengths = steps["load_start_s"], steps["load_s"]
    rows_of: dict[int, list[int]] = {}
    for row, worker in enumerate(steps["load_worker"]):
        if worker is not None:
            rows_of.setdefault(worker, []).append(row)
    for number, (worker, rows) in enumerate(sorted(rows_of.items())):
        name = "loader: training process" if worker == -1 else f"loader: worker {worker}"
        blocks: list[_Block] = []
        spans = in_a_row([starts[row] for row in rows], [lengths[row] for row in rows])
        for begin, end, index in spans:
            args = _known({name: column[rows[index]] for name, column in shown.items()})
            blocks.append((f"load {args.get('step', '?')}", begin, end, args))
        yield from _thread(pid, _WORKERS + number, name, blocks)


def _instants(happened: list[RunEvent]) -> Iterator[_Block]:
    timed = [(_ticks(event.get("time_s")), event) for event in happened]
    known = [(at, event) for at, event in timed if at is not None]
    for at, event in sorted(known, key=lambda each: each[0]):
        args = _known({k: v for k, v in event.items() if k not in ("time_s", "event")})
        yield str(event.get("event", "?")), at, None, args


def _counters(pid: int, telemetry: Table) -> Iterator[TraceEvent]:
    """Yield telemetry. A counter holds its value until the next, so a share is put at its start."""
    samples = in_a_row(telemetry["time_s"], [0.0] * len(telemetry))
    for name, unit, column in _GAUGES:
        values = telemetry[column]
        for at, _, row in samples:
            if values[row] is not None and -math.inf < values[row] < math.inf:
                yield _count(pid, name, at, unit, values[row])
    for name, column in _CPU_SHARES:
        values = telemetry[column]
        for (at, _, row), (later, _, next_row) in pairwise(samples):
            before, after = _ticks(values[row]), _ticks(values[next_row])
            # A counter falls when processes end: their usage is unknown.
            if later > at and before is not None and after is not None and after >= before:
                yield _count(pid, name, at, "%", round(100 * (after - before) / (later - at), 3))


def _count(pid: int, name: str, at: int, unit: str, value: float) -> TraceEvent:
    event: TraceEvent = {"ph": "C", "pid": pid, "cat": "telemetry", "name": name}
    return {**event, "ts": at / TICKS_PER_US, "args": {unit: value}}


def in_a_row(starts_s: Iterable[Any], lengths_s: Iterable[Any]) -> list[Span]:
    """Lay out valid rows in order of time; one that overlaps the next is cut there."""
    found = [
        span
        for row, (start_s, length_s) in enumerate(zip(starts_s, lengths_s, strict=True))
        if (span := _span(start_s, length_s, row)) is not None
    ]
    found.sort()
    for index, (span, after) in enumerate(pairwise(found)):
        if span.end > after.begin:
            found[index] = span._replace(end=after.begin)
    return found


def nested(spans: Iterable[Span]) -> list[Span]:
    """Nest spans that lie within another; cut those that overlap otherwise."""
    done = sorted(spans, key=lambda span: (span.begin, -span.end))
    around: list[int] = []  # the spans that may contain the current one
    for index, span in enumerate(done):
        while around and done[around[-1]].end < span.end:
            outer = around.pop()
            if done[outer].end > span.begin:
                done[outer] = done[outer]._replace(end=span.begin)
        around.append(index)
    return done


def lay_out(
    names: Iterable[str], lengths_s: Iterable[Any], begin: int, end: int | None = None
) -> Iterator[tuple[str, int, int]]:
    """Lay out parts in a row from `begin` to at most `end`; leave out those below a tick."""
    at, total_s = begin, 0.0
    for name, length_s in zip(names, lengths_s, strict=True):
        if _ticks(length_s) is None:
            continue
        total_s += length_s
        until = begin + round(total_s * _TICKS_PER_S)
        if end is not None and until > end:
            until = end
        if until > at:
            yield name, at, until
            at = until


def _span(start_s: Any, length_s: Any, row: int) -> Span | None:
    if _ticks(start_s) is None or _ticks(length_s) is None:
        return None
    begin = round(start_s * _TICKS_PER_S)
    return Span(begin, round((start_s + length_s) * _TICKS_PER_S), row)


def _ticks(time_s: Any) -> int | None:
    """Return a time in ticks; None if it is unknown, negative or invalid."""
    if isinstance(time_s, int | float) and 0 <= time_s <= _LONGEST_S:  # false for NaN
        return round(time_s * _TICKS_PER_S)
    return None


def _known(values: Args) -> Args:
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return values that JSON cannot hold as the words that JavaScript uses."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _thread(pid: int, number: int, kind: str, blocks: Iterable[_Block]) -> Iterator[TraceEvent]:
    """Yield the events of a thread. Its number is unique to a process, as Perfetto requires."""
    tid = pid * 100_000 + number
    yield from _named(pid, kind, tid)
    for name, begin, end, args in blocks:
        event: TraceEvent = {"pid": pid, "tid": tid, "cat": kind, "ph": "i", "name": name}
        event["ts"] = begin / TICKS_PER_US
        if end is None:
            event["s"] = "t"
        else:
            event["ph"], event["dur"] = "X", (end - begin) / TICKS_PER_US
        if args:
            event["args"] = args
        yield event


def _named(pid: int, name: str, tid: int | None = None) -> Iterator[TraceEvent]:
    """Yield the events that name and place a process, or a thread of it."""
    what, place = ("process", pid) if tid is None else ("thread", tid)
    event: TraceEvent = {"ph": "M", "pid": pid, "ts": 0}
    if tid is not None:
        event["tid"] = tid
    yield {**event, "name": f"{what}_name", "args": {"name": name}}
    yield {**event, "name": f"{what}_sort_index", "args": {"sort_index": place}}

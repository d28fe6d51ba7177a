"""A run as a trace: what lies where, and that a reader of the format finds it in order."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import written_tables
from hypothesis import given
from hypothesis import strategies as st
from written_tables import Rows, write_tables

from stepscope.errors import AnswerIsNo
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.report.export import chrome_trace

MakeRun = Callable[..., Run]


def step(number: int, start_s: float | None, **changes: Any) -> dict[str, Any]:
    """Give a step as a loop without workers leaves it, with when its batch was made."""
    loaded = {"load_s": 0.0015, "load_start_s": start_s, "load_worker": -1}
    return written_tables.step(number, start_s=start_s, **{**loaded, **changes})


@pytest.fixture
def recorded(tmp_path: Path) -> MakeRun:
    """Write a folder of a run from rows, or that of one rank of it."""

    def make(
        *tables: Rows,
        telemetry: Rows = (),
        happened: Iterable[str] = (),
        rank: int | None = None,
        **info: Any,
    ) -> Run:
        folder = tmp_path if rank is None else tmp_path / "ranks" / str(rank)
        run = write_tables(folder, *tables, telemetry=telemetry, id="a-run", **info)
        (folder / schema.EVENTS).write_text("".join(f"{line}\n" for line in happened))
        return run

    return make


def threads_of(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Give the blocks and instants by `process / thread`, as a person sees them."""
    events = list(events)
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    thread = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi":
            found[f"{process[event['pid']]} / {thread[event['tid']]}"].append(event)
    return dict(found)


def counters_of(events: Iterable[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            ((unit, value),) = event["args"].items()
            found[f"{event['name']} {unit}"].append((event["ts"], value))
    return dict(found)


def blocks(events: Iterable[dict[str, Any]]) -> list[tuple[str, float, float]]:
    return [(event["name"], event["ts"], event["dur"]) for event in events]


def assert_as_perfetto_reads_it(events: Iterable[dict[str, Any]]) -> None:
    """Check that blocks nest in nanoseconds, got as Perfetto's importer gets them."""
    open_until: dict[int, list[int]] = defaultdict(list)
    at: dict[int, int] = defaultdict(int)
    for event in events:
        if event["ph"] != "X":
            continue
        thread = event["tid"]
        begin, length = int(event["ts"] * 1000.0), int(event["dur"] * 1000.0)
        assert length >= 0
        assert begin >= at[thread], "in order of time"
        at[thread] = begin
        around = open_until[thread]
        while around and around[-1] <= begin:
            around.pop()
        assert not around or begin + length <= around[-1], "inside, or behind"
        around.append(begin + length)


# --- where things lie -----------------------------------------------------------------------------


def test_the_phases_of_a_step_follow_each_other_in_order_inside_it(recorded):
    threads = threads_of(chrome_trace.events(recorded([step(1, 2.0)])))
    (shown,) = threads["training / steps"]
    assert blocks([shown]) == [("step 1", 2_000_000, 10_000)]
    assert shown["args"] == {"epoch": 1, "step": 1, "samples": 32, "loss": 2.5, "detail": "full"}
    assert blocks(threads["training / phases"]) == [
        ("data", 2_000_000, 2000),
        ("forward", 2_002_000, 3000),  # nothing was spent on the transfer
        ("backward", 2_005_000, 4000),
        ("optimizer", 2_009_000, 500),
        ("other", 2_009_500, 500),
    ]
    assert not any("device" in name for name in threads), "no device columns, no device"


@pytest.mark.parametrize("detail", ["off", "layers"])
def test_a_step_that_was_not_measured_in_full_has_no_phases(recorded, detail):
    rows = [step(1, 2.0, detail=detail), step(2, 2.01)]
    threads = threads_of(chrome_trace.events(recorded(rows)))
    assert len(threads["training / steps"]) == 2
    assert min(event["ts"] for event in threads["training / phases"]) == 2_010_000


def test_each_worker_has_a_thread_with_what_it_loaded_and_when(recorded):
    rows = [
        step(1, 2.0, load_worker=0, load_start_s=1.5, load_s=0.25),
        step(2, 2.01, load_worker=1, load_start_s=1.6, load_s=0.25),
        step(3, 2.02, load_worker=0, load_start_s=1.75, load_s=0.25, load_cpu_s=0.125),
        step(4, 2.03),
    ]
    threads = threads_of(chrome_trace.events(recorded(rows)))
    assert blocks(threads["training / loader: worker 0"]) == [
        ("load 1", 1_500_000, 250_000),
        ("load 3", 1_750_000, 250_000),
    ]
    assert blocks(threads["training / loader: worker 1"]) == [("load 2", 1_600_000, 250_000)]
    assert blocks(threads["training / loader: training process"]) == [("load 4", 2_030_000, 1500)]
    last = threads["training / loader: worker 0"][-1]
    assert last["args"] == {"epoch": 1, "step": 3, "load_s": 0.25, "load_cpu_s": 0.125}


def test_work_that_is_a_sum_over_batches_is_cut_where_the_next_begins(recorded):
    rows = [
        step(1, 2.0, load_worker=0, load_start_s=1.5, load_s=0.5),
        step(2, 2.01, load_worker=0, load_start_s=1.75, load_s=0.5),
    ]
    shown = threads_of(chrome_trace.events(recorded(rows)))["training / loader: worker 0"]
    assert [(event["dur"], event["args"]["load_s"]) for event in shown] == [
        (250_000, 0.5),
        (500_000, 0.5),
    ]


def test_epochs_and_tests_share_a_thread(recorded):
    epochs = [
        {"epoch": 0, "split": "test", "start_s": 1.0, "total_s": 0.5, "accuracy": 0.1},
        {"epoch": 1, "split": "train", "start_s": 1.75, "total_s": 1.0, "loss": math.nan},
        {"epoch": 1, "split": "test", "start_s": 2.75, "total_s": 0.5},
    ]
    shown = threads_of(chrome_trace.events(recorded([step(1, 2.0)], epochs)))["training / epochs"]
    assert blocks(shown) == [
        ("test before training", 1_000_000, 500_000),
        ("epoch 1", 1_750_000, 1_000_000),
        ("test after epoch 1", 2_750_000, 500_000),
    ]
    assert shown[0]["args"]["accuracy"] == 0.1
    assert shown[1]["args"]["loss"] == "NaN"


@pytest.mark.parametrize(
    ("trained", "tested", "starts", "shown"),
    [
        # total_s leaves the test out, and the epoch goes on behind it.
        ((2.0, 0.02), (2.01, 1.0), (2.0, 3.01), [(2_000_000, 1_020_000), (2_010_000, 1_000_000)]),
        # Starts are written with nine digits, so neighbours may overlap by microseconds.
        ((2.0, 1.000004), (3.0, 0.5), (2.0,), [(2_000_000, 1_000_000), (3_000_000, 500_000)]),
        # The row of an epoch that is still going on is not written yet.
        (None, None, (2.0, 2.01), [(2_000_000, 20_000)]),
    ],
)
def test_a_test_lies_inside_its_epoch_or_behind_it(recorded, trained, tested, starts, shown):
    epochs = [
        {"epoch": 1, "split": split, "start_s": span[0], "total_s": span[1]}
        for split, span in (("test", tested), ("train", trained))
        if span
    ]
    run = recorded([step(number, start) for number, start in enumerate(starts)], epochs)
    found = threads_of(chrome_trace.events(run))["training / epochs"]
    names = ["epoch 1", "test after epoch 1"] if epochs else ["epoch 1, unfinished"]
    assert blocks(found) == [(name, *span) for name, span in zip(names, shown, strict=True)]


def test_the_device_is_a_process_of_its_own_and_may_run_behind_the_host(recorded):
    device = {
        "idle_device_s": 0.001,
        "transfer_device_s": 0.002,
        "forward_device_s": 0.003,
        "backward_device_s": 0.006,
        "optimizer_device_s": 0.002,
        "other_device_s": 0.001,
    }
    rows = [step(1, 2.0, **device), step(2, 2.01, **device), step(1, 3.0, epoch=2, **device)]
    shown = threads_of(chrome_trace.events(recorded(rows)))["device / device phases"]
    assert blocks(shown)[:7] == [
        ("idle", 2_000_000, 1000),
        ("transfer", 2_001_000, 2000),
        ("forward", 2_003_000, 3000),
        ("backward", 2_006_000, 6000),
        ("optimizer", 2_012_000, 2000),
        ("other", 2_014_000, 1000),
        ("idle", 2_015_000, 1000),  # the host began this step at 2.010
    ]
    assert shown[6]["args"] == {"epoch": 1, "step": 2}
    assert blocks(shown)[12] == ("idle", 3_000_000, 1000)


def test_telemetry_becomes_counters_and_unknown_is_left_out(recorded):
    telemetry = [
        {"time_s": 0.5, "pss_bytes": 100, "rss_bytes": 200, "main_cpu_s": 1.0, "power_w": 7.5},
        {"time_s": 1.0, "rss_bytes": 300, "main_cpu_s": 1.75},
        {"time_s": 1.5, "pss_bytes": 150, "rss_bytes": 250, "main_cpu_s": 0.25},
        {"time_s": 2.0, "rss_bytes": 250, "main_cpu_s": 0.5},
    ]
    found = counters_of(chrome_trace.events(recorded([step(1, 2.0)], telemetry=telemetry)))
    assert found == {
        "memory, proportional (pss) bytes": [(500_000, 100), (1_500_000, 150)],
        "memory, resident (rss) bytes": [
            (500_000, 200),
            (1_000_000, 300),
            (1_500_000, 250),
            (2_000_000, 250),
        ],
        # Between 1.0 and 1.5 another process took over: what was used is unknown.
        "CPU of the training process %": [(500_000, 150.0), (1_500_000, 50.0)],
        "power W": [(500_000, 7.5)],
    }


def test_what_happened_is_shown_when_it_happened(recorded):
    happened = [
        '{"time_s": 3.5, "event": "fault", "traceback": "a \\"word\\"\\n\\u00e9", "of": [1]}',
        '{"time_s": 2.5, "event": "checkpoint", "step": 3, "stage": 1, "took_s": 0.1}',
        '{"time_s": "soon", "event": "nonsense"}',
        '{"time_s": NaN, "event": "nonsense"}',
        '{"event": "nonsense"}',
        '{"time_s": 4.0, "ev',
    ]
    text = "".join(
        piece for piece, _ in chrome_trace.encode(recorded([step(1, 2.0)], happened=happened))
    )
    shown = threads_of(json.loads(text)["traceEvents"])["training / events"]
    assert [(event["name"], event["ts"]) for event in shown] == [
        ("checkpoint", 2_500_000),
        ("fault", 3_500_000),
    ]
    assert shown[1]["args"] == {"traceback": 'a "word"\né', "of": [1]}


def test_each_rank_is_a_process(recorded):
    device = {"idle_device_s": 0.01}
    run = recorded(
        [step(1, 2.0, samples=64)], happened=['{"time_s": 1, "event": "resume", "after": "failed"}']
    )
    for rank in (0, 1, 10):
        recorded([step(1, 2.0 + rank, **device)], rank=rank, telemetry=[{"time_s": 1.0}])
    (run.path / "ranks" / "notes").mkdir()
    events = list(chrome_trace.events(run))
    threads = threads_of(events)
    assert [name for name in threads if name.endswith("/ steps")] == [
        "rank 0 / steps",
        "rank 1 / steps",
        "rank 10 / steps",
    ]
    assert "rank 10, device / device phases" in threads
    assert [name for name in threads if name.endswith("/ events")] == ["rank 0 / events"]
    assert threads["rank 1 / steps"][0]["args"]["samples"] == 32
    named = [event["tid"] for event in events if event["name"] == "thread_name"]
    assert len(named) == len(set(named)), "a thread's number is of one process alone"


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_a_loss_that_json_has_no_number_for_becomes_a_word(recorded, loss, word):
    text = "".join(piece for piece, _ in chrome_trace.encode(recorded([step(1, 2.0, loss=loss)])))
    trace = json.loads(text, parse_constant=lambda found: pytest.fail(f"{found} is not JSON"))
    (shown,) = threads_of(trace["traceEvents"])["training / steps"]
    assert shown["args"]["loss"] == word


def test_rows_that_cannot_be_placed_are_left_out(recorded):
    wrong = [None, math.nan, math.inf, -1.0, 1e300]
    rows = [step(number + 10, start) for number, start in enumerate(wrong)]
    rows += [step(number + 20, 2.0, step_s=length) for number, length in enumerate(wrong)]
    events = list(chrome_trace.events(recorded([*rows, step(1, 2.0)])))
    assert blocks(threads_of(events)["training / steps"]) == [("step 1", 2_000_000, 10_000)]


def test_a_run_without_a_step_is_a_no(recorded):
    for status, advice in (("running", "after its first training step"), ("failed", "`reason`")):
        with pytest.raises(AnswerIsNo, match=f"no training step is recorded .*{advice}"):
            list(chrome_trace.encode(recorded([], status=status)))


def test_the_text_is_one_object_that_says_of_what_it_is(recorded):
    pieces = list(chrome_trace.encode(recorded([step(n, 2 + n / 100) for n in range(2000)])))
    assert len(pieces) > 3, "it is not held as a whole"
    trace = json.loads("".join(text for text, _ in pieces))
    assert len(trace["traceEvents"]) == sum(count for _, count in pieces)
    assert trace["otherData"]["id"] == "a-run"
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "name", "ts"} <= set(event)


# --- layout ---------------------------------------------------------------------------------------

times = st.one_of(
    st.floats(0, 1e5), st.floats(), st.none(), st.sampled_from([0.0, 1e-9, 62.5e-9, 0.1, 1e9])
)
some = st.lists(st.tuples(times, times), max_size=12)


def overlaps(spans: list[tuple[int, int]]) -> bool:
    return any(end > begin for (_, end), (begin, _) in pairwise(spans))


@given(some)
def test_rows_on_one_thread_come_in_order_and_never_overlap(rows):
    spans = chrome_trace.in_a_row([start for start, _ in rows], [length for _, length in rows])
    assert all(span.begin <= span.end for span in spans)
    assert not overlaps([(span.begin, span.end) for span in spans])
    for span in spans:
        start_s, length_s = rows[span.row]
        assert span.begin == pytest.approx(start_s * 8e6, abs=0.51)
        assert span.end - span.begin <= length_s * 8e6 + 1.01


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_epochs_and_tests_lie_inside_one_another_or_behind(found):
    spans = chrome_trace.nested(
        chrome_trace.Span(b, b + length, row) for row, (b, length) in enumerate(found)
    )
    assert sorted(span.row for span in spans) == list(range(len(found)))
    for index, one in enumerate(spans):
        assert one.begin == found[one.row][0]
        assert one.begin <= one.end <= sum(found[one.row])
        for other in spans[index + 1 :]:
            assert one.begin <= other.begin
            assert other.begin >= one.end or other.end <= one.end


@given(
    st.lists(times, min_size=6, max_size=6),
    st.integers(0, 10**12),
    st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_phases_lie_inside_their_step_one_behind_the_other(lengths, begin, length):
    end = None if length is None else begin + length
    laid = list(chrome_trace.lay_out(schema.PHASES, lengths, begin, end))
    names = [name for name, _, _ in laid]
    assert names == [phase for phase in schema.PHASES if phase in names]
    assert all(since < until for _, since, until in laid)
    assert not overlaps([(since, until) for _, since, until in laid])
    if laid:
        assert laid[0][1] == begin
        assert end is None or laid[-1][2] <= end


seconds = st.floats(0, 0.5).map(lambda value: round(value, 9))
a_step = st.tuples(st.lists(seconds, min_size=6, max_size=6), st.sampled_from(["full", "off"]))


@given(st.floats(0, 1e6), st.lists(a_step, min_size=1, max_size=20))
def test_steps_as_they_are_recorded_read_back_without_an_overlap(at_s, measured):
    rows = []
    for number, (parts, detail) in enumerate(measured):
        phases = dict(zip([f"{phase}_s" for phase in schema.PHASES], parts, strict=True))
        device = {f"{phase}_device_s": parts[0] for phase in ("idle", "forward", "backward")}
        rows.append(step(number, round(at_s, 9), detail=detail, **phases, **device))
        rows[-1]["step_s"] = round(sum(parts), 9)
        at_s += sum(parts)
    run = Run(Path("nowhere"), {})
    run.__dict__["steps"] = Table(
        {name: [row.get(name) for row in rows] for name in schema.STEP_COLUMNS}
    )
    events = list(chrome_trace.events(run))
    assert_as_perfetto_reads_it(events)
    threads = threads_of(events)
    inside = {event["ts"]: event["ts"] + event["dur"] for event in threads["training / steps"]}
    for phase in threads.get("training / phases", []):
        around = max(begin for begin in inside if begin <= phase["ts"])
        assert phase["ts"] + phase["dur"] <= inside[around]

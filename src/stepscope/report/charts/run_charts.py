"""The charts of one run: time, epochs, learning, layers, memory, machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepscope.analyze.downsample import MOST_BUCKETS, thin
from stepscope.analyze.memory_use import pools_of
from stepscope.analyze.phase_shares import dropped_note
from stepscope.analyze.roofline import attainable_flop_per_s
from stepscope.analyze.run_summary import EVALUATION_SPLITS, evaluation_split, figures_so_far
from stepscope.analyze.throttled_time import throttled_ranges
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import BillItem, LayerTime, MemoryBill, PoolUse, Roofline, Summary
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.html.page_content import Section
from stepscope.units import format_share

# --- Steps


_MS = 1e3


def phases_by_step(run: Run) -> Chart:
    """Return the chart of the phases of the steps, stacked."""
    places = range(1, len(run.steps) + 1)
    marks = [
        ChartMark(bucket.at, bucket.mean * _MS, phase)
        for phase in schema.PHASES
        for bucket in thin(places, run.steps[f"{phase}_s"])
    ]
    chart = Chart("Phases by step", "areas", "step", "time, ms", marks, _reduced_note(run, "means"))
    return _with_throttling(run, chart)


def _by_step(run: Run) -> tuple[Chart, Chart]:
    """Return the charts of the time and the loss of every step: mean, minimum and maximum."""
    places = range(1, len(run.steps) + 1)
    note = _reduced_note(run, "line: mean; band: minimum to maximum")
    times = _band(places, run.steps["step_s"], "", _MS)
    losses = _band(places, run.steps["loss"], "")
    time = Chart("Time of every step", "bands", "step", "time, ms", times, note)
    loss = Chart("Loss by step", "bands", "step", "loss", losses, note, from_zero=False)
    return _with_throttling(run, time), loss


def _band(
    places: Sequence[Any], values: Sequence[Any], series: str, times: float = 1
) -> list[ChartMark]:
    """Return means with their extremes, of as many places as a chart can show."""
    return [
        ChartMark(each.at, each.mean * times, series, "", each.least * times, each.most * times)
        for each in thin(places, values)
    ]


def _with_throttling(run: Run, chart: Chart) -> Chart:
    """Return the chart with throttled steps shaded; ranges closer than a point are merged."""
    steps = len(run.steps)
    width = max(1, steps // MOST_BUCKETS)
    shaded: list[tuple[float, float]] = []
    for first, last in throttled_ranges(run):
        # Steps count from 1; half a step beyond the ends would extend the axis.
        begin, end = max(1.0, first + 0.5), min(float(steps), last + 1.5)
        if shaded and begin - shaded[-1][1] < width:
            begin = shaded.pop()[0]
        shaded.append((begin, end))
    if not shaded:
        return chart
    subtitle = "; ".join(filter(None, (chart.subtitle, "shaded: the machine was throttled")))
    return replace(chart, subtitle=subtitle, shaded=("throttled", shaded))


def _reduced_note(run: Run, how: str) -> str:
    """Return a note on the number of steps per point, if it is more than one."""
    steps = len(run.steps)
    if steps <= MOST_BUCKETS:
        return ""
    return f"{steps:,} steps, about {steps // MOST_BUCKETS:,} per point: {how}"


# --- Learning: accuracy and loss by epoch and by time, of one or several runs


def learning_charts(runs: Sequence[tuple[str, Run]]) -> list[Chart]:
    """Return accuracy by time and epoch, and loss by epoch: of each split, or of each run."""
    splits: Sequence[str] = ("train", *EVALUATION_SPLITS)
    if len(runs) > 1:
        known = {split for _, run in runs for split in run.epochs["split"]}
        splits = [split for split in EVALUATION_SPLITS if split in known] or ["train"]
    rows = [
        (name or split, row)
        for split in splits
        for name, run in runs
        for row in run.epoch_rows(split)
    ]
    by_time = _finite_marks(
        (name, row["start_s"] + row["total_s"], row["accuracy"], 100)  # known at the end
        for name, row in rows
        if row["start_s"] is not None and row["total_s"] is not None
    )
    by_epoch = _finite_marks(
        (name, float(row["epoch"]), row["accuracy"], 100) for name, row in rows
    )
    losses = _finite_marks((name, float(row["epoch"]), row["loss"], 1) for name, row in rows)
    return [
        Chart("Accuracy by time", "lines", "time since the start, s", "accuracy, %", by_time),
        Chart("Accuracy by epoch", "lines", "epoch", "accuracy, %", by_epoch),
        Chart("Loss by epoch", "lines", "epoch", "loss", losses),
    ]


def _finite_marks(figures: Iterable[tuple[str, float, float | None, float]]) -> list[ChartMark]:
    return [
        ChartMark(at, value * times, name)
        for name, at, value, times in figures
        if value is not None and math.isfinite(value)
    ]


# --- Machine: CPU, reads, pressure, clock, device, power, temperature


_MIB = 2**20
_TIME = "time since the start, s"

# Title, y axis, the columns with their names, and of a counter the factor of its growth per second.
_SAMPLED: Sequence[tuple[str, str, Mapping[str, str], float | None]] = (
    (
        "CPU",
        "use, % of one CPU",
        {"main_cpu_s": "training process", "workers_cpu_s": "loader workers"},
        100,
    ),
    ("Reading", "read, MiB/s", {"read_bytes": ""}, 1 / _MIB),
    (
        "Pressure: time that tasks waited",
        "share of time, %",
        {"pressure_cpu": "for a CPU", "pressure_io": "for I/O", "pressure_memory": "for memory"},
        None,
    ),
    ("CPU clock", "clock, MHz", {"cpu_mhz": ""}, None),
    ("Device use", "use, %", {"device_percent": ""}, None),
    ("Device clock", "clock, MHz", {"device_mhz": ""}, None),
    ("Power", "power, W", {"power_w": ""}, None),
    ("Temperature", "temperature, °C", {"temperature_c": ""}, None),
)


def machine_charts(run: Run) -> list[Chart]:
    """Return a chart for each kind of telemetry that was sampled and not 0 throughout."""
    times_s = run.telemetry["time_s"]
    charts = []
    for title, y, columns, growth in _SAMPLED:
        marks: list[ChartMark] = []
        for column, name in columns.items():
            values = run.telemetry[column]
            if growth is not None:
                values = _rate(times_s, values, growth)
            if any(values):
                marks += _band(times_s, values, name)
        if marks:
            charts.append(Chart(title, "bands", _TIME, y, marks))
    return charts


def _rate(times_s: Sequence[Any], counts: Sequence[Any], times: float) -> list[float | None]:
    """Return the growth of a counter per second; None where it falls, as a process ended."""
    rates: list[float | None] = []
    before_s = before = None
    for time_s, count in zip(times_s, counts, strict=True):
        grew = None
        if None not in (before_s, before, time_s, count):
            took_s, more = time_s - before_s, count - before
            grew = more / took_s * times if more >= 0 and took_s > 0 else None
        rates.append(grew)
        if count is not None:
            before_s, before = time_s, count
    return rates


# --- Memory


_NEAR_THE_LIMIT = 4  # a more distant limit would flatten the chart


def memory_by_time(runs: Sequence[tuple[str, Run]]) -> Chart:
    """Return the chart of the memory of all processes, with the limit if it is near."""
    marks = [mark for name, run in runs for mark in _memory(name, run)]
    most = max((mark.high or mark.y for mark in marks), default=0.0)
    near: tuple[str, float] | None = None
    for _, run in runs:
        bill = run.summary.get("memory_bill") or {}
        limit_bytes = bill.get("limit_bytes")
        limit_bytes = limit_bytes or run.info.get("environment", {}).get("memory_limit_bytes")
        limit_mib = (limit_bytes or math.inf) / _MIB
        if limit_mib < min(most * _NEAR_THE_LIMIT, near[1] if near else math.inf):
            near = ("device limit" if bill.get("limit_pool") == "device" else "limit", limit_mib)
    return Chart("Memory over time", "bands", _TIME, "memory, MiB", marks, limit=near)


def _memory(name: str, run: Run) -> Iterator[ChartMark]:
    telemetry = run.telemetry
    on_device = any(telemetry["device_memory_bytes"])
    for column, what in (("pss_bytes", "host"), ("device_memory_bytes", "device")):
        values = telemetry[column]
        if what == "host" and not any(values):  # a system without proportional sizes
            values = telemetry["rss_bytes"]
        series = ", ".join(filter(None, (name, what))) if on_device or not name else name
        yield from _band(telemetry["time_s"], values, series, 1 / _MIB)


def bill_waterfalls(bill: MemoryBill | None) -> list[Chart]:
    """Return a waterfall of each pool's items, up to the measured peak."""
    if not bill:
        return []
    pools = pools_of(bill["items"])
    charts = []
    for pool in pools:
        items = {name: item for name, item in bill["items"].items() if item["pool"] == pool}
        title = "Memory bill" if len(pools) == 1 else f"Memory bill, {pool}"
        charts.append(_waterfall(title, items, (bill.get("pools") or {}).get(pool)))
    return charts


def _waterfall(title: str, items: Mapping[str, BillItem], seen: PoolUse | None) -> Chart:
    marks: list[ChartMark] = []
    reached = 0.0
    for name, item in items.items():
        measured = item.get("measured_bytes")
        size = (item["bytes"] if measured is None else measured) / _MIB
        if size:
            part = name.replace("_", " ")
            marks.append(ChartMark(part, size, low=reached, high=reached + size))
            reached += size
    if seen and (unexplained_bytes := seen.get("unexplained_bytes")) is not None:
        size = unexplained_bytes / _MIB
        low, high = sorted((reached, reached + size))
        marks.append(ChartMark("unexplained", size, low=low, high=high))
        reached += size
    whole = "peak" if seen and seen["peak_bytes"] else "total"
    marks.append(ChartMark(whole, reached, low=0.0, high=reached, chosen=True))
    note = "measured where possible, otherwise forecast"
    return Chart(title, "waterfall", "", "memory, MiB", marks, note)


# --- Roofline


_GIGA = 1e9
_ROOM = 4.0  # extent of the roof beyond ridge and phases, on either side
_ROOF = "roof"


def roofline_chart(roofline: Roofline | None) -> Chart:
    """Return the roofline chart, which is empty without a measured peak."""
    marks: list[ChartMark] = []
    reached: list[str] = []
    if roofline and (peak := roofline["peak"]):
        for name, phase in roofline["phases"].items():
            if phase["flop_per_s"] and phase["flop_per_byte"]:
                rate = phase["flop_per_s"] / _GIGA
                marks.append(ChartMark(phase["flop_per_byte"], rate, name))
            if (share := phase["share_of_roof"]) is not None:
                reached.append(f"{name} reaches {format_share(share)} of its roof")
        ridge = peak["flop_per_s"] / peak["bytes_per_s"]
        at = [ridge, *(float(mark.x) for mark in marks)]
        marks = [
            ChartMark(each, attainable_flop_per_s(peak, each) / _GIGA, _ROOF)
            for each in (min(at) / _ROOM, ridge, max(at) * _ROOM)
        ] + marks
    title, x = "Roofline: forward and backward", "arithmetic intensity, FLOP/byte (bytes estimated)"
    return Chart(title, "roofline", x, "GFLOP/s", marks, ", ".join(reached))


_MOST_LAYERS = 15
_LEAST_SHARE = 0.001  # share of the time of all layers: a shorter bar is invisible


def sections_of(run: Run, known: Summary | None = None) -> list[Section]:
    """Return all charts that a run has data for; `known` is its `figures_so_far`, if at hand."""
    figures = figures_so_far(run) if known is None else known
    time_by_step, loss_by_step = _by_step(run)
    time = [phase_bar(figures), phases_by_step(run), time_by_step]
    learning = [*learning_charts([("", run)]), loss_by_step]
    memory = [memory_by_time([("", run)]), *bill_waterfalls(figures.get("memory_bill"))]
    epochs = Chart("Time of every epoch", "stacked", "epoch", "time, s", list(epoch_marks(run)))
    sections = [
        _section("Time of a step", time, figures, "phases"),
        _section("Epochs", [epochs]),
        _section("Learning", learning, figures, f"{evaluation_split(run)}_accuracy"),
        _section("Layers", [layers_chart(figures.get("layers"))], figures, "layers"),
        _section("Limit", [roofline_chart(figures.get("roofline"))], figures, "share_of_peak"),
        _section("Memory", memory, figures, "memory_bill"),
        _section("Machine", machine_charts(run)),
    ]
    return [section for section in sections if section.charts or section.notes]


def _section(
    title: str, charts: list[Chart], figures: Summary | None = None, *needs: str
) -> Section:
    """Return a section without empty charts, with the reason for missing ones."""
    absent = figures.get("absent", {}) if figures else {}
    notes = [f"No {name.replace('_', ' ')}: {absent[name]}." for name in needs if name in absent]
    return Section(title, charts, notes).with_data()


def phase_bar(figures: Summary) -> Chart:
    """Return a step as one bar of its phases, with the device's time below the host's."""
    device = figures.get("device")
    rows = [("host", figures.get("phases") or {}), ("device", device["phases"] if device else {})]
    marks = [
        ChartMark(where, phases[name]["mean_s"] * 1e3, name)
        for where, phases in rows
        for name in (*schema.PHASES, "idle")
        if name in phases
    ]
    title, y = "Where the time of a step goes", "mean time of a step, ms"
    return Chart(title, "rows", "", y, marks, dropped_note(figures))


def epoch_marks(run: Run, panel: str = "") -> Iterator[ChartMark]:
    """Return loading and training of every training epoch."""
    for row in run.epoch_rows():
        if row["split"] == "train":
            for part, took_s in (("loading", row["loading_s"]), ("training", row["training_s"])):
                if took_s is not None:
                    yield ChartMark(str(row["epoch"]), took_s, part, panel)


def layers_chart(layers: list[LayerTime] | None) -> Chart:
    """Return the chart of the slowest layers, forward and backward."""
    given = layers or []
    times_s = [layer["forward_s"] + layer["backward_s"] for layer in given]
    least_s = sum(times_s) * _LEAST_SHARE
    long = [layer for layer, time_s in zip(given, times_s, strict=True) if time_s > least_s]
    shown = long[:_MOST_LAYERS]
    marks = [
        ChartMark(layer["name"], took_s * 1e3, way)
        for layer in shown
        for way, took_s in (("forward", layer["forward_s"]), ("backward", layer["backward_s"]))
    ]
    note = f"the slowest {len(shown)} of {len(given)} layers" if len(shown) < len(given) else ""
    return Chart("Time by layer", "rows", "layer", "time of a step, ms", marks, note)

"""The charts of one run: time, epochs, learning, layers, memory, machine.

A chart without data is not drawn; a note gives the reason if the run records it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepscope.analyze.downsample import MOST_BUCKETS, thin
from stepscope.analyze.memory_use import pools_of
from stepscope.analyze.phase_shares import dropped_note
from stepscope.analyze.roofline import attainable_flop_per_s
from stepscope.analyze.run_summary import evaluation_split, figures_so_far
from stepscope.analyze.throttled_time import throttled_ranges
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import LayerTime, MemoryBill, Roofline, Summary
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.charts.learning_charts import learning_charts
from stepscope.report.html.page_content import Section
from stepscope.units import format_share

# --- Steps


_MS = 1e3
_SHADE = "throttled"
_ABOUT_SHADE = "shaded: the machine held itself back (throttling)"


def phases_by_step(run: Run) -> Chart:
    """Return the chart of the phases of the steps, stacked."""
    places = range(1, len(run.steps) + 1)
    marks = [
        ChartMark(bucket.at, bucket.mean * _MS, phase)
        for phase in schema.PHASES
        for bucket in thin(places, run.steps[f"{phase}_s"])
    ]
    chart = Chart("Phases by step", "areas", "step", "time, ms", marks, reduced_note(run, "means"))
    return _with_throttling(run, chart)


def by_step(
    run: Run,
    column: str = "step_s",
    title: str = "Time of every step",
    y: str = "time, ms",
    times: float = _MS,
) -> Chart:
    """Return the chart of a figure of the steps: mean, minimum and maximum."""
    buckets = thin(range(1, len(run.steps) + 1), run.steps[column])
    marks = [
        ChartMark(each.at, each.mean * times, low=each.least * times, high=each.most * times)
        for each in buckets
    ]
    note = reduced_note(run, "the line is the mean, the band from the least to the most")
    chart = Chart(title, "bands", "step", y, marks, note, from_zero=column != "loss")
    return chart if column == "loss" else _with_throttling(run, chart)


def _with_throttling(run: Run, chart: Chart) -> Chart:
    """Return the chart with throttled steps shaded, and a subtitle that says so."""
    stretches = _stretches(run)
    if not stretches:
        return chart
    subtitle = "; ".join(filter(None, (chart.subtitle, _ABOUT_SHADE)))
    return replace(chart, subtitle=subtitle, shaded=(_SHADE, stretches))


def _stretches(run: Run) -> list[tuple[float, float]]:
    """Return the edges of throttled ranges; those closer than a point are merged."""
    steps = len(run.steps)
    width = max(1, steps // MOST_BUCKETS)
    found: list[tuple[float, float]] = []
    for each in throttled_ranges(run):
        # Steps count from 1; half a step beyond the ends would extend the axis.
        begin, end = max(1.0, each.first_row + 0.5), min(float(steps), each.last_row + 1.5)
        if found and begin - found[-1][1] < width:
            begin = found.pop()[0]
        found.append((begin, end))
    return found


def reduced_note(run: Run, how: str) -> str:
    """Return a note on the number of steps per point, if it is more than one."""
    steps = len(run.steps)
    if steps <= MOST_BUCKETS:
        return ""
    return f"{steps:,} steps, about {steps // MOST_BUCKETS:,} a point: {how}"


# --- Machine: CPU, reads, pressure, clock, device, power, temperature


_MIB = 2**20
_TIME = "time since the start, s"

# Title, y axis, and the columns with their names.
_SAMPLED: Sequence[tuple[str, str, Mapping[str, str]]] = (
    (
        "Pressure: tasks that had to wait",
        "share of time, %",
        {"pressure_cpu": "for a CPU", "pressure_io": "for I/O", "pressure_memory": "for memory"},
    ),
    ("Clock of the CPU", "clock, MHz", {"cpu_mhz": ""}),
    ("Use of the device", "use, %", {"device_percent": ""}),
    ("Clock of the device", "clock, MHz", {"device_mhz": ""}),
    ("Power", "power, W", {"power_w": ""}),
    ("Temperature", "temperature, °C", {"temperature_c": ""}),
)


def machine_charts(run: Run) -> list[Chart]:
    """Return a chart for each kind of telemetry that was sampled."""
    telemetry = run.telemetry
    cpu = {"main_cpu_s": "training process", "workers_cpu_s": "loader workers"}
    charts = [
        _chart("CPU", "use, % of one CPU", telemetry, _rates(telemetry, cpu, 100)),
        _chart(
            "Reading", "read, MiB/s", telemetry, _rates(telemetry, {"read_bytes": ""}, 1 / _MIB)
        ),
    ]
    for title, y, columns in _SAMPLED:
        values = {name: telemetry[column] for column, name in columns.items()}
        charts.append(_chart(title, y, telemetry, values))
    return [chart for chart in charts if chart.marks]


def _chart(title: str, y: str, telemetry: Table, by_name: Mapping[str, Sequence[Any]]) -> Chart:
    """Return one chart without series that are 0 throughout."""
    marks = [
        ChartMark(each.at, each.mean, name, low=each.least, high=each.most)
        for name, values in by_name.items()
        if any(values)
        for each in thin(telemetry["time_s"], values)
    ]
    return Chart(title, "bands", _TIME, y, marks)


def _rates(
    telemetry: Table, columns: Mapping[str, str], times: float
) -> dict[str, list[float | None]]:
    times_s = telemetry["time_s"]
    return {name: _rate(times_s, telemetry[column], times) for column, name in columns.items()}


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
    """Return the chart of the memory of all processes, with the limit if it is near.

    Sizes are proportional (PSS) where the system has them, else the resident size of the training.
    """
    marks = [mark for name, run in runs for mark in _memory(name, run)]
    most = max((mark.high or mark.y for mark in marks), default=0.0)
    limits = [limit for _, run in runs for limit in _limit_mib(run)]
    limit = min(limits, key=lambda limit: limit[1], default=None)
    near = limit is not None and limit[1] < most * _NEAR_THE_LIMIT
    return Chart(
        "Memory over time",
        "bands",
        "time since the start, s",
        "memory, MiB",
        marks,
        limit=limit if near else None,
    )


def _memory(name: str, run: Run) -> Iterator[ChartMark]:
    telemetry = run.telemetry
    on_device = any(telemetry["device_memory_bytes"])
    for column, what in (("pss_bytes", "host"), ("device_memory_bytes", "device")):
        values = telemetry[column]
        if what == "host" and not any(values):
            values = telemetry["rss_bytes"]
        series = ", ".join(filter(None, (name, what))) if on_device or not name else name
        for each in thin(telemetry["time_s"], values):
            size, low, high = (part / _MIB for part in (each.mean, each.least, each.most))
            yield ChartMark(each.at, size, series, low=low, high=high)


def _limit_mib(run: Run) -> Iterator[tuple[str, float]]:
    """Yield the name and size of the limit that is used most, if one is known."""
    environment = run.info.get("environment") or {}
    bill = run.summary.get("memory_bill") or {}
    found = bill.get("limit_bytes") or environment.get("memory_limit_bytes")
    if found:
        of_device = bill.get("limit_pool") == "device"
        yield "limit of the device" if of_device else "limit", found / _MIB


def bill_waterfalls(bill: MemoryBill | None) -> list[Chart]:
    """Return a waterfall of each pool's items, up to the measured peak."""
    if not bill:
        return [_waterfall("Memory bill", {})]
    pools = pools_of(bill["items"])
    if len(pools) == 1:
        return [_waterfall("Memory bill", bill)]
    return [_waterfall(f"Memory bill, {pool}", _part_of(bill, pool)) for pool in pools]


def _part_of(bill: MemoryBill, pool: str) -> MemoryBill:
    items = {name: item for name, item in bill["items"].items() if item["pool"] == pool}
    seen = (bill.get("pools") or {}).get(pool)
    part: MemoryBill = {"items": items, "peak_memory_bytes": None}
    if seen is not None:
        part["peak_memory_bytes"] = seen["peak_bytes"]
        if "unexplained_bytes" in seen:
            part["unexplained_bytes"] = seen["unexplained_bytes"]
    return part


def _waterfall(title: str, bill: MemoryBill) -> Chart:
    return Chart(
        title,
        "waterfall",
        "",
        "memory, MiB",
        list(_parts(bill)) if bill else [],
        "measured where it could be, else forecast" if bill else "",
    )


def _parts(bill: MemoryBill) -> Iterator[ChartMark]:
    reached = 0.0
    for name, item in bill["items"].items():
        measured = item.get("measured_bytes")
        size = (item["bytes"] if measured is None else measured) / _MIB
        if size:
            yield ChartMark(name.replace("_", " "), size, low=reached, high=reached + size)
            reached += size
    if bill.get("unexplained_bytes") is not None:
        size = bill["unexplained_bytes"] / _MIB
        low, high = sorted((reached, reached + size))
        yield ChartMark("unexplained", size, low=low, high=high)
        reached += size
    whole = "peak" if bill.get("peak_memory_bytes") else "in all"
    yield ChartMark(whole, reached, low=0.0, high=reached, chosen=True)


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
    return Chart(
        "How near the limit: forward and backward under the roof",
        "roofline",
        "operations a byte, FLOP/byte (bytes are estimated)",
        "GFLOP/s",
        marks,
        ", ".join(reached),
    )


_MOST_LAYERS = 15
_LEAST_SHARE = 0.001  # share of the time of all layers: a shorter bar is invisible


def sections_of(run: Run, known: Summary | None = None) -> list[Section]:
    """Return all charts that a run has data for; `known` is its `figures_so_far`, if at hand."""
    figures = figures_so_far(run) if known is None else known
    time = [phase_bar(figures), phases_by_step(run), by_step(run)]
    loss_by_step = by_step(run, "loss", "Loss by step", "loss", 1)
    learning = [*learning_charts([("", run)]), loss_by_step]
    memory = [memory_by_time([("", run)]), *bill_waterfalls(figures.get("memory_bill"))]
    sections = [
        _section("Time of a step", time, figures, "phases"),
        _section("Epochs", [epochs_chart(run)]),
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
    return Chart(
        "Where the time of a step goes",
        "rows",
        "",
        "mean time of a step, ms",
        [
            ChartMark(where, phases[name]["mean_s"] * 1e3, name)
            for where, phases in rows
            for name in (*schema.PHASES, "idle")
            if name in phases
        ],
        dropped_note(figures),
    )


def epochs_chart(run: Run, panel: str = "") -> Chart:
    """Return the chart of loading and training by epoch, stacked."""
    return Chart(
        "Time of every epoch", "stacked", "epoch", "time, s", list(epoch_marks(run, panel))
    )


def epoch_marks(run: Run, panel: str = "") -> Iterator[ChartMark]:
    """Return loading and training of every training epoch."""
    for row in run.epochs.rows():
        if row["split"] == "train":
            for part in ("loading", "training"):
                if row[f"{part}_s"] is not None:
                    yield ChartMark(str(row["epoch"]), row[f"{part}_s"], part, panel)


def layers_chart(layers: list[LayerTime] | None) -> Chart:
    """Return the chart of the slowest layers, forward and backward."""
    given = layers or []
    least_s = sum(map(_layer_s, given)) * _LEAST_SHARE
    shown = [layer for layer in given if _layer_s(layer) > least_s][:_MOST_LAYERS]
    more = len(given) - len(shown)
    return Chart(
        "Time by layer",
        "rows",
        "layer",
        "time of a step, ms",
        [
            ChartMark(layer["name"], took_s * 1e3, way)
            for layer in shown
            for way, took_s in (("forward", layer["forward_s"]), ("backward", layer["backward_s"]))
        ],
        f"the slowest {len(shown)}; {more} more take less" if more else "",
    )


def _layer_s(layer: LayerTime) -> float:
    return float(layer["forward_s"] + layer["backward_s"])

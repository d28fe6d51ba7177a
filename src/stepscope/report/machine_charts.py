"""What the machine did meanwhile: CPU, reading, pressure, clock, device, power, heat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.thinning import thin
from stepscope.records.reader import Run
from stepscope.records.table import Table
from stepscope.report.charts import Chart, Mark

_MIB = 2**20
_TIME = "time since the start, s"

# Title, y, and the columns with their names.
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
    """Describe a chart for each kind of figure that was sampled."""
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
    """Leave out series that stay at 0 throughout: nothing of the kind was going on."""
    marks = [
        Mark(each.at, each.mean, name, low=each.least, high=each.most)
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
    """Turn a count into its growth a second; where it falls, a process ended: unknown."""
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

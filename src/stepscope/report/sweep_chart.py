"""The graph of a sweep: throughput by what was varied, with intervals and the fastest marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.setting_names import as_text, name_of
from stepscope.report.charts import Chart
from stepscope.report.intervals import drawable, with_interval
from stepscope.stats import Interval

Row = Mapping[str, Any]


def sweep_chart(rows: Sequence[Row]) -> Chart:
    """Describe the graph: the first axis on x, the others as series.

    `rows` are those of `analyze.settings_of_sweep`.
    """
    known = [row for row in rows if row["samples_per_s"]["median"] is not None]
    best = fastest(known)
    axes = list(rows[0]["values"]) if rows else []
    x = axes[0] if axes else "setting"
    marks, note = drawable(
        with_interval(
            _place(row["values"].get(x)),
            Interval(**row["samples_per_s"]),
            name_of({axis: row["values"].get(axis) for axis in axes[1:]}),
            chosen=row is best,
        )
        for row in known
    )
    title = f"Throughput by {' and '.join(axes) or 'setting'}".replace("_", " ")
    return Chart(title, "points", x.replace("_", " "), "samples/s", marks, note)


def fastest(rows: Sequence[Row]) -> Row | None:
    """Return the setting of the highest median."""
    known = [row for row in rows if row["samples_per_s"]["median"] is not None]
    return max(known, key=lambda row: float(row["samples_per_s"]["median"]), default=None)


def as_fast(best: Row, rows: Sequence[Row]) -> list[Row]:
    """List the other settings whose intervals reach into the best one's, or have none."""
    low = best["samples_per_s"]["low"]
    return [
        row
        for row in rows
        if row is not best
        and row["samples_per_s"]["median"] is not None
        and (
            low is None
            or row["samples_per_s"]["high"] is None
            or row["samples_per_s"]["high"] >= low
        )
    ]


def _place(value: Any) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else as_text(value)

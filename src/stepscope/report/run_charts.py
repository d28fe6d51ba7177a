"""The charts of one run: time, epochs, learning, layers, memory, machine.

A chart whose data are missing is not drawn; where the run knows why, a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepscope.analyze.evaluations import judged_on
from stepscope.analyze.so_far import figures_so_far
from stepscope.records import schema
from stepscope.records.reader import Run
from stepscope.report.charts import Chart, Mark
from stepscope.report.course_charts import by_step, phases_by_step
from stepscope.report.document import Section
from stepscope.report.learning_charts import accuracy_by_epoch, accuracy_by_time, loss_by_epoch
from stepscope.report.machine_charts import machine_charts
from stepscope.report.memory_charts import bill_waterfalls, memory_by_time
from stepscope.report.roofline import roofline_chart

_MOST_LAYERS = 15
_LEAST_SHARE = 0.001  # of the time of all layers: less is no bar that one sees


def sections_of(run: Run, known: dict[str, Any] | None = None) -> list[Section]:
    """Describe every chart that a run has data for; `known`: its `figures_so_far`, if at hand."""
    figures = figures_so_far(run) if known is None else known
    time = [phase_bar(figures), phases_by_step(run), by_step(run)]
    learning = [accuracy_by_time([("", run)]), accuracy_by_epoch([("", run)])]
    learning += [loss_by_epoch([("", run)]), by_step(run, "loss", "Loss by step", "loss", 1)]
    memory = [memory_by_time([("", run)]), *bill_waterfalls(figures.get("memory_bill"))]
    sections = [
        _section("Time of a step", time, figures, "phases"),
        _section("Epochs", [epochs_chart(run)]),
        _section("Learning", learning, figures, f"{judged_on(run)}_accuracy"),
        _section("Layers", [layers_chart(figures.get("layers"))], figures, "layers"),
        _section("Limit", [roofline_chart(figures.get("roofline"))], figures, "share_of_peak"),
        _section("Memory", memory, figures, "memory_bill"),
        _section("Machine", machine_charts(run)),
    ]
    return [section for section in sections if section.charts or section.notes]


def _section(
    title: str, charts: list[Chart], figures: dict[str, Any] | None = None, *needs: str
) -> Section:
    """Leave out what has nothing to show, and say why where that is known."""
    absent = (figures or {}).get("absent") or {}
    notes = [f"No {name.replace('_', ' ')}: {absent[name]}." for name in needs if name in absent]
    return Section(title, charts, notes).with_data()


def phase_bar(figures: dict[str, Any]) -> Chart:
    """Show a step as one bar, its phases after each other; the device's time below the host's."""
    device = (figures.get("device") or {}).get("phases") or {}
    rows = [("host", figures.get("phases") or {}), ("device", device)]
    return Chart(
        "Where the time of a step goes",
        "rows",
        "",
        "mean time of a step, ms",
        [
            Mark(where, phases[name]["mean_s"] * 1e3, name)
            for where, phases in rows
            for name in (*schema.PHASES, "idle")
            if name in phases
        ],
        dropped_note(figures),
    )


def dropped_note(figures: dict[str, Any]) -> str:
    """Say which epochs take no part in means."""
    dropped = figures.get("dropped_epochs") or []
    return f"without epoch {', '.join(map(str, dropped))}" if dropped else ""


def epochs_chart(run: Run, panel: str = "") -> Chart:
    """Show every epoch as loading and training on top of each other."""
    return Chart(
        "Time of every epoch", "stacked", "epoch", "time, s", list(epoch_marks(run, panel))
    )


def epoch_marks(run: Run, panel: str = "") -> Iterator[Mark]:
    """Give loading and training of every training epoch."""
    for row in run.epochs.rows():
        if row["split"] == "train":
            for part in ("loading", "training"):
                if row[f"{part}_s"] is not None:
                    yield Mark(str(row["epoch"]), row[f"{part}_s"], part, panel)


def layers_chart(layers: list[dict[str, Any]] | None) -> Chart:
    """Show the slowest layers, forward and backward."""
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
            Mark(layer["name"], layer[f"{way}_s"] * 1e3, way)
            for layer in shown
            for way in ("forward", "backward")
        ],
        f"the slowest {len(shown)}; {more} more take less" if more else "",
    )


def _layer_s(layer: dict[str, Any]) -> float:
    return float(layer["forward_s"] + layer["backward_s"])

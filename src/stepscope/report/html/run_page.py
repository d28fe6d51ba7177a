"""The report of one run: verdict, findings, figures and charts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stepscope.analyze.findings import Finding
from stepscope.analyze.phase_shares import dropped_note
from stepscope.analyze.run_summary import figures_so_far, flat_environment
from stepscope.analyze.verdict import about_accounted_share, verdict_on
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import EnergyFigures, Summary, Verdict
from stepscope.report.charts.run_charts import sections_of
from stepscope.report.expected_gain import phrases_to_stress
from stepscope.report.html.page_content import Document
from stepscope.report.html.run_sections import insights_of, step_bars, tiles_of
from stepscope.report.terminal.run_tables import about_ending, about_throttling, epoch_figures
from stepscope.report.terminal.table_style import FigureList
from stepscope.units import (
    duration_format,
    format_bytes,
    format_duration,
    format_flop_per_s,
    format_joules,
    format_range,
    format_share,
)

_TIMES = ("median", "p95", "p99", "mean", "total")
_MOST_EVENTS = 200
_SHOWN_ELSEWHERE = ("energy_sensors", "energy_idle")  # shown in the table of energy


def document_of_run(run: Run, findings: Sequence[Finding]) -> Document:
    """Return the report of a run, finished or not."""
    figures = figures_so_far(run)
    verdict = figures.get("verdict") or verdict_on(run, [*findings])
    best = next((each for each in findings if each.name == verdict["cause"]), None)
    tables = [_phase_figures(figures), epoch_figures(run), _key_figures(figures)]
    if energy := figures.get("energy"):
        tables.append(_energy_figures(energy))
    appendix = [
        _events(run),
        _mapping("Not available", figures.get("absent") or {}, ("figure", "reason")),
        _mapping("Environment", flat_environment(run.info)),
        _mapping("Spec", run.spec),
    ]
    return Document(
        title=str(run.info.get("name") or run.path.name),
        subtitle=about(run),
        verdict=[*_conclusion(run, verdict), *_reliability(run, figures)],
        findings=findings,
        figures=[table for table in tables if table.rows],
        sections=sections_of(run, figures),
        values=figures,
        appendix=[table for table in appendix if table.rows],
        stressed=phrases_to_stress(verdict, findings),
        command=verdict["command"],
        bars=[*step_bars(run, figures, best)],
        tiles=[*tiles_of(run, figures)],
        wall_s=figures.get("wall_s"),
        insights=insights_of(figures),
    )


def _conclusion(run: Run, verdict: Verdict) -> Iterator[str]:
    ending, reason = about_ending(run), run.info.get("reason")
    if ending is not None:
        yield f"{ending[:-1]}: {str(reason).rstrip('.')}." if reason else ending
    if ending is None or verdict["expected_speedup"]:
        yield verdict["text"]


def _reliability(run: Run, figures: Summary) -> Iterator[str]:
    """Yield how much the figures stand on, and what could not be read."""
    if run.status == schema.RUNNING:
        yield "The run has not ended: these are the figures so far."
    if figures.get("phases"):
        parts = [f"{figures.get('steps', 0):,} steps"]
        if dropped := dropped_note(figures):
            parts.append(f"figures {dropped}")
        parts += about_accounted_share(figures)
        cost = (run.info.get("instrument") or {}).get("overhead_share")
        if cost is not None:
            parts.append(f"profiling overhead {format_share(cost)}")
        yield f"{', '.join(parts)}."
    for name in (schema.STEPS, schema.EPOCHS, schema.TELEMETRY):
        cut = getattr(run, name.removesuffix(".csv")).cut_lines
        if cut:
            yield f"{name}: skipped {cut:,} unreadable line{'s' * (cut > 1)}."
    if run.left_out:
        more = f" and {len(run.left_out) - 1:,} more" if len(run.left_out) > 1 else ""
        yield f"{run.left_out[0]}{more}."


def about(run: Run) -> str:
    """Return one line: what was run, the device, the time, and the status."""
    spec, environment = run.spec, run.info.get("environment") or {}
    what = f"{spec.get('model', '?')} on {spec.get('data', '?')}"
    if run.info.get("kind") == "trace":
        what = str(spec.get("module") or spec.get("script"))
    device = environment.get("device_name") or environment.get("cpu") or spec.get("device")
    started = run.info.get("started_unix_s")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if started else None
    host = environment.get("hostname")
    parts = (what, device, f"on {host}" if host else None, when, run.status.replace("_", " "))
    return ", ".join(str(part) for part in parts if part)


def _phase_figures(figures: Summary) -> FigureList:
    phases: Mapping[str, Mapping[str, Any]] = figures.get("phases") or {}
    rows = [[name, format_share(each["share"])] for name, each in phases.items()]
    columns = ["phase", "share"]
    for column in _TIMES:
        times_s: list[Any] = [each.get(f"{column}_s") for each in phases.values()]
        if None not in times_s:  # a run in progress has only means
            columns.append(column)
            form = duration_format(times_s)
            rows = [[*row, form(time_s)] for row, time_s in zip(rows, times_s, strict=True)]
    return FigureList("Phases of a step", columns, rows, dropped_note(figures))


def _key_figures(figures: Summary) -> FigureList:
    forms: dict[str, Callable[[Any], str]] = {
        "samples_per_s": "{:,.1f}".format,
        "steps": "{:,}".format,
        "samples": "{:,}".format,
        "wall_s": format_duration,
        "preparation_s": format_duration,
        "peak_memory_bytes": format_bytes,
        "device_peak_memory_bytes": format_bytes,
        "train_accuracy": format_share,
        "test_accuracy": format_share,
        "test_top5": format_share,
        "validation_accuracy": format_share,
        "flop_per_s": format_flop_per_s,
        "share_of_peak": format_share,
        "energy_j": "{:,.1f} J".format,
        "throttling": about_throttling,
        "bad_samples": "{:,}".format,
    }
    names = {"samples_per_s": "samples/s", "flop_per_s": "FLOP/s"}
    rows = []
    for name, form in forms.items():
        if (value := figures.get(name)) is not None:
            words = re.sub("_(s|bytes|j)$", "", name).replace("_", " ")
            rows.append([names.get(name, words), form(value)])
    return FigureList("Figures of the run", ["figure", "value"], rows)


def _energy_figures(energy: EnergyFigures) -> FigureList:
    """Return a table of the joules by run, domain, phase and epoch."""
    rows: list[list[str]] = []
    if energy["joules"] is not None:
        rows.append(["total", format_joules(energy["joules"]), "measured", "", ""])
        for phase, found in (energy.get("phases") or {}).items():
            if found["joules"] is not None:
                low, high = found["interval"] or (None, None)
                interval = format_range(low, high, format_joules)
                spent = format_joules(found["joules"])
                rows.append([f"total: {phase}", spent, str(found["how"]), interval, ""])
    for name, domain in energy["domains"].items():
        period_s = domain["period_s"]
        every = "" if period_s is None else f", every {format_duration(period_s)}"
        spent = format_joules(domain["joules"])
        rows.append([name, spent, "measured", "", domain["sensor"] + every])
    for epoch in energy.get("epochs", ()):
        if epoch["joules"] is not None:
            name = f"epoch {epoch['epoch']}, {epoch['split']}"
            rows.append([name, format_joules(epoch["joules"]), "measured", "", ""])
    notes = []
    if energy["covers"]:
        notes.append(f"the total covers {', '.join(energy['covers'])}")
    if energy["leaves_out"]:
        notes.append(f"it excludes {'; '.join(energy['leaves_out'])}")
    if bridged_s := energy.get("bridged_s"):
        notes.append(f"gaps ({format_duration(bridged_s)} total) are filled with the mean power")
    columns = ["domain", "energy", "method", "95 % interval", "sensor, period"]
    return FigureList("Energy", columns, rows, ". ".join(notes))


def _events(run: Run) -> FigureList:
    events = [each for each in run.events if each.get("event") not in _SHOWN_ELSEWHERE]
    rows = []
    for event in events[:_MOST_EVENTS]:
        about = [f"{key} {value}" for key, value in event.items() if key not in ("time_s", "event")]
        time_s = event.get("time_s")  # of another program, it may be anything
        when = format_duration(time_s) if isinstance(time_s, int | float) else "?"
        rows.append([when, str(event.get("event", "?")), ", ".join(about)])
    more = len(events) - len(rows)
    return FigureList("Events", ["time", "event", "detail"], rows, f"{more:,} more" if more else "")


def _mapping(
    title: str, values: Mapping[str, object], columns: Sequence[str] = ("name", "value")
) -> FigureList:
    rows = [[name, "" if value is None else str(value)] for name, value in values.items()]
    return FigureList(title, columns, rows)

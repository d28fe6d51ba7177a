"""Sections of a run's page: its wall clock, its loader, and the lines that `other` goes to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepscope.analyze.wall_time import GAPS, PARTS, TRAINING
from stepscope.records.types import LoaderFigures, StackTime, Summary, WallSpan
from stepscope.report.html.page_content import Bar, BarPart, Section
from stepscope.report.html.run_overview import parts_of_run, percent
from stepscope.report.terminal.table_style import FigureList
from stepscope.units import duration_format, format_duration, format_share

_MOST_SPANS = 300
_MOST_LINES = 15
_MOST_PARTS = 12
_PALETTE_SIZE = 8


def insights_of(figures: Summary) -> list[Section]:
    """Return the sections for which a run has figures."""
    sections = (_timeline(figures), _loader(figures), _lines(figures))
    return [section for section in sections if section is not None]


# --- Timeline


def _timeline(figures: Summary) -> Section | None:
    """Return the whole wall clock as one bar, with the total of each part."""
    spans, wall_s = figures.get("wall_time"), figures.get("wall_s")
    if not spans or not wall_s:
        return None
    totals = parts_of_run(figures)
    shown = duration_format(totals.values())
    legend = [
        BarPart(f"{part} {percent(totals[part] / wall_s)}", 0.0, shown(totals[part]), part)
        for part in PARTS
        if part in totals
    ]
    bar = Bar(
        "0 s", format_duration(wall_s), _drawn(spans, wall_s, figures.get("epochs")), legend=legend
    )
    about = f"the whole {format_duration(wall_s)}"
    return Section("Timeline", [], bars=[bar], about=about, short=format_duration(wall_s))


def _drawn(spans: Sequence[WallSpan], wall_s: float, epochs: int | None) -> list[BarPart]:
    """Return spans as parts of the bar; of very many, the longest within each small interval."""
    if len(spans) > _MOST_SPANS:
        return _pixels(spans, wall_s)
    whole = epochs == sum(span["part"] == TRAINING for span in spans)  # no evaluation within one
    epoch = 0
    drawn = []
    for span in spans:
        epoch += span["part"] == TRAINING
        name = f"epoch {epoch}" if span["part"] == TRAINING and whole else span["part"]
        took = format_duration(span["total_s"])
        drawn.append(BarPart(name, span["total_s"] / wall_s, took, span["part"]))
    return drawn


def _pixels(spans: Sequence[WallSpan], wall_s: float) -> list[BarPart]:
    most: list[dict[str, float]] = [defaultdict(float) for _ in range(_MOST_SPANS)]
    width_s = wall_s / _MOST_SPANS
    for span in spans:
        begin_s, end_s = span["start_s"], span["start_s"] + span["total_s"]
        first = min(int(begin_s / width_s), _MOST_SPANS - 1)
        for at in range(first, min(int(end_s / width_s), _MOST_SPANS - 1) + 1):
            inside_s = min(end_s, (at + 1) * width_s) - max(begin_s, at * width_s)
            most[at][span["part"]] += max(inside_s, 0.0)
    parts = [max(each, key=each.__getitem__) if each else GAPS for each in most]
    runs: list[tuple[str, int]] = []
    for part in parts:
        if runs and runs[-1][0] == part:
            runs[-1] = (part, runs[-1][1] + 1)
        else:
            runs.append((part, 1))
    return [
        BarPart(part, count / _MOST_SPANS, format_duration(count * width_s), part)
        for part, count in runs
    ]


# --- Loader


def _loader(figures: Summary) -> Section | None:
    """Return what the loader does, by part, and the samples that take longest."""
    loader = figures.get("loader")
    if not loader:
        return None
    parts = loader["parts"][:_MOST_PARTS]
    slow = list({each["index"]: each for each in reversed(loader["slow_samples"])}.values())[::-1]
    tables = []
    if parts:
        rows = [
            [each["name"], each["kind"], each["line"] or "", format_share(each["share"])]
            for each in parts
        ]
        columns = ["part", "kind", "line", "share of loading"]
        tables.append(FigureList("Parts of loading", columns, rows, left=(1, 2)))
    if slow:
        shown = duration_format(each["took_s"] for each in slow)
        rows = [[str(each["index"]), shown(each["took_s"])] for each in slow]
        tables.append(FigureList("Slowest samples", ["index", "took"], rows))
    phases = figures.get("phases")
    short = percent(phases["data"]["share"]) if phases else ""
    return Section(
        "Loader",
        [],
        _about_samples(loader),
        [_loader_bar(loader)] if parts else [],
        tables,
        about="in all of its processes, from samples of their stacks",
        short=short,
    )


def _about_samples(loader: LoaderFigures) -> list[str]:
    if not loader["samples"]:
        return []
    said = f"{loader['samples']:,} samples loaded"
    if loader["sample_s"] is not None:
        said += f", {format_duration(loader['sample_s'])} each on average"
    if loader["median_sample_s"] is not None:
        said += f", {format_duration(loader['median_sample_s'])} in the median"
    notes = [f"{said}."]
    if loader["slow_share"]:
        share = format_share(loader["slow_share"])
        notes.append(f"Samples that take over eight times the median have {share} of that time.")
    return notes


def _loader_bar(loader: LoaderFigures) -> Bar:
    shares: dict[str, float] = defaultdict(float)
    for each in loader["parts"]:
        shares[each["name"]] += each["share"]
    largest = sorted(shares.items(), key=lambda each: each[1], reverse=True)
    parts = [
        BarPart(f"{name} {percent(share)}", share, "", str(number % _PALETTE_SIZE))
        for number, (name, share) in enumerate(largest)
    ]
    sample_s = loader["sample_s"]
    return Bar("one sample", "" if sample_s is None else format_duration(sample_s), parts)


# --- Lines


def _lines(figures: Summary) -> Section | None:
    """Return the lines of the script that take the time outside the phases."""
    stacks = figures.get("stacks") or []
    inside = [each for each in stacks if each["where"] == "other"]
    outside = [each for each in stacks if each["where"] not in _OF_STEPS]
    tables = []
    if inside:
        total_s = sum(each["total_s"] for each in inside)
        columns = ["line", "code", "activity", "time", "share"]
        rows = [
            [*row, format_share(each["total_s"] / total_s) if total_s else "?"]
            for row, each in zip(_rows(inside), inside, strict=False)
        ]
        tables.append(
            FigureList("In `other`", columns, rows, _more(inside), left=(1, 2), code=(0, 1))
        )
    if outside:
        rows = [[*row, each["where"]] for row, each in zip(_rows(outside), outside, strict=False)]
        columns = ["line", "code", "activity", "time", "where"]
        note = _more(outside)
        tables.append(
            FigureList("Outside the steps", columns, rows, note, left=(1, 2, 4), code=(0, 1))
        )
    if not tables:
        return None
    phases = figures.get("phases")
    return Section(
        "Where `other` goes",
        [],
        figures=tables,
        about="lines of the script, from samples of its stack",
        short=percent(phases["other"]["share"]) if phases else "",
    )


_OF_STEPS = ("data", "transfer", "forward", "backward", "optimizer", "other")


def _rows(stacks: Sequence[StackTime]) -> list[list[str]]:
    shown = duration_format(each["total_s"] for each in stacks)
    return [
        [
            each["line"] or "outside the script",
            each["code"] or "",
            each["activity"] or "",
            shown(each["total_s"]),
        ]
        for each in stacks[:_MOST_LINES]
    ]


def _more(stacks: Sequence[StackTime]) -> str:
    more = len(stacks) - _MOST_LINES
    return f"{more:,} more lines with less time" if more > 0 else ""

"""The parts of a run's page that show its time: bars, tiles, and sections on loader and lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from stepscope.analyze.findings import Finding
from stepscope.analyze.wall_time import CHECKPOINTS, GAPS, PARTS, TRAINING, time_by_part
from stepscope.analyze.what_if import what_if
from stepscope.errors import StepscopeError
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import LoaderFigures, StackTime, Summary, WallSpan
from stepscope.report.html.page_content import Bar, BarPart, Section, Tile
from stepscope.report.terminal.table_style import FigureList
from stepscope.units import (
    duration_format,
    format_bytes,
    format_duration,
    format_flop_per_s,
    format_share,
)

# --- Bars: one step, or the run, now and after the change

# The phase of a step, or the part of the run, that the change of a finding shortens.
_SHORTENS = {
    "waiting_for_data": "data",
    "too_few_workers": "data",
    "slow_loading": "data",
    "slow_transform": "data",
    "slow_reads": "data",
    "slow_decoding": "data",
    "slow_collate": "data",
    "slow_dataset": "data",
    "slow_samples": "data",
    "large_transfer": "transfer",
    "large_optimizer": "optimizer",
    "unfused_optimizer": "optimizer",
    "synchronising_reads": "other",
    "logging_in_loop": "other",
    "metrics_in_loop": "other",
    "gradient_clipping": "other",
    "scheduler_in_loop": "other",
    "garbage_collection": "other",
    "work_in_loop": "other",
    "frequent_evaluation": "evaluation",
    "gradients_in_evaluation": "evaluation",
    "frequent_checkpoints": "checkpoints",
    "gaps_between_epochs": "gaps",
}
_COMPUTATION = ("forward", "backward", "optimizer")


def percent(share: float) -> str:
    """Print a share of one in whole percent, as beside a bar."""
    return f"{share * 100:.0f} %" if share >= 0.005 or not share else "< 1 %"


def bar_of(
    title: str, value: str, parts: Mapping[str, float], *, length: float = 1.0, thin: bool = False
) -> Bar:
    """Return a bar of named times, in seconds."""
    total_s = sum(parts.values()) or 1.0
    shown = [
        BarPart(
            f"{name} {percent(time_s / total_s)}", time_s / total_s, format_duration(time_s), name
        )
        for name, time_s in parts.items()
        if time_s > 0
    ]
    return Bar(title, value, shown, length, thin)


def parts_of_run(figures: Summary) -> dict[str, float]:
    """Return the time of each part of the wall clock, in seconds; checkpoints are one of them."""
    spans, saved = figures.get("wall_time") or [], figures.get("checkpoints")
    drawn_s = sum(span["total_s"] for span in spans if span["part"] == CHECKPOINTS)
    return time_by_part(spans, max(saved["total_s"] - drawn_s, 0.0) if saved else 0.0)


def step_bars(run: Run, figures: Summary, best: Finding | None) -> Iterator[Bar]:
    """Yield a step, and the step or the run after the change that brings most."""
    phases = figures.get("phases")
    if not phases:
        return
    now = {name: phases[name]["mean_s"] for name in schema.PHASES}
    step_s, rate = sum(now.values()), figures.get("samples_per_s")
    yield bar_of(f"one step, {format_duration(step_s)}", _rate(rate), now)
    wall_s, steps = figures.get("wall_s"), len(run.steps)
    if best is None or not best.saves_s or not wall_s or not steps or not step_s:
        return
    part = _SHORTENS.get(best.name)
    if part in now:
        after = _shortened(now, part, best.saves_s / steps)
        after_s = sum(after.values())
        expected = None if rate is None or not after_s else rate * step_s / after_s
        title = f"expected after the change, {format_duration(after_s)}"
        yield bar_of(title, _rate(expected), after, length=after_s / step_s, thin=True)
        return
    parts = parts_of_run(figures)
    run_s = sum(parts.values())
    if part not in parts or not run_s:
        return
    yield bar_of(f"the run, {format_duration(wall_s)}", "", parts)
    after = _shortened(parts, part, best.saves_s)
    after_s = sum(after.values())
    title = f"expected after the change, {format_duration(wall_s * after_s / run_s)}"
    yield bar_of(title, "", after, length=after_s / run_s, thin=True)


def _shortened(parts: Mapping[str, float], part: str, saved_s: float) -> dict[str, float]:
    """Take a time from one part, and what exceeds it from the others alike."""
    left_s = max(sum(parts.values()) - saved_s, 0.0)
    after = {**parts, part: max(parts[part] - saved_s, 0.0)}
    over = left_s / (sum(after.values()) or 1.0)
    return {name: time_s * min(over, 1.0) for name, time_s in after.items()}


def _rate(samples_per_s: float | None) -> str:
    return "" if samples_per_s is None else f"{samples_per_s:,.0f} samples/s"


# --- Tiles


def tiles_of(run: Run, figures: Summary) -> Iterator[Tile]:
    """Yield the figures that are worth a glance, each with what it may be compared with."""
    phases, rate = figures.get("phases"), figures.get("samples_per_s")
    if device := figures.get("device"):  # what the host waits for costs nothing while it is busy
        phases = {**device["phases"], "data": device["phases"]["idle"]}
    if rate is not None:
        speedup = _ceiling(run)
        note = f"at most {rate * speedup:,.0f} with a loader that costs nothing" if speedup else ""
        share = 1 / speedup if speedup else None
        yield Tile("Throughput", f"{rate:,.0f}", "samples/s", note, share)
    if phases:
        waits = phases["data"]
        value, unit = percent(waits["share"]).rsplit(" ", 1)
        note = f"{format_duration(waits['mean_s'])} of a step"
        yield Tile("Waiting for data", value, f"{unit} of a step", note, waits["share"], "data")
    if (peak_bytes := figures.get("peak_memory_bytes")) is not None:
        value, unit = format_bytes(peak_bytes).split(" ")
        total_bytes = (run.info.get("environment") or {}).get("memory_bytes")
        of = f"of {format_bytes(total_bytes)}" if isinstance(total_bytes, int) else ""
        share = peak_bytes / total_bytes if of and total_bytes else None
        yield Tile("Peak memory", value, unit, of, share)
    if (share := figures.get("share_of_peak")) is not None:
        flop_per_s = figures.get("flop_per_s")
        note = f"{format_flop_per_s(flop_per_s)} in forward and backward" if flop_per_s else ""
        value = f"{share * 100:.0f}"
        yield Tile("Compute", value, "% of this machine's peak", note, min(share, 1.0), "forward")
    elif phases:
        computing = sum(phases[name]["share"] for name in _COMPUTATION)
        value = percent(computing).rsplit(" ", 1)[0]
        note = "forward, backward and optimizer"
        yield Tile("Computation", value, "% of a step", note, computing, "forward")


def _ceiling(run: Run) -> float | None:
    """Return how much faster steps would be if data cost nothing; None if that is unknown."""
    try:
        found = what_if(run, "loader=free")
    except StepscopeError:
        return None
    phases = run.summary.get("phases")
    step_s = sum(each["mean_s"] for each in phases.values()) if phases else 0.0
    return step_s / found.step_s if found.step_s and step_s >= found.step_s else None


# --- Sections


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
    runs = ((part, len(list(pixels))) for part, pixels in groupby(parts))
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
    outside = [each for each in stacks if each["where"] not in schema.PHASES]
    total_s = sum(each["total_s"] for each in inside)

    def share(stack: StackTime) -> str:
        return format_share(stack["total_s"] / total_s) if total_s else "?"

    tables = [
        _lines_of("In `other`", inside, "share", share),
        _lines_of(
            "Outside the steps", outside, "where", lambda each: each["where"], left=(1, 2, 4)
        ),
    ]
    if not any(table.rows for table in tables):
        return None
    phases = figures.get("phases")
    return Section(
        "Where `other` goes",
        [],
        figures=[table for table in tables if table.rows],
        about="lines of the script, from samples of its stack",
        short=percent(phases["other"]["share"]) if phases else "",
    )


def _lines_of(
    title: str,
    stacks: Sequence[StackTime],
    last_column: str,
    last: Callable[[StackTime], str],
    left: Sequence[int] = (1, 2),
) -> FigureList:
    shown = duration_format(each["total_s"] for each in stacks)
    rows = [
        [
            each["line"] or "outside the script",
            each["code"] or "",
            each["activity"] or "",
            shown(each["total_s"]),
            last(each),
        ]
        for each in stacks[:_MOST_LINES]
    ]
    more = len(stacks) - _MOST_LINES
    note = f"{more:,} more lines with less time" if more > 0 else ""
    columns = ["line", "code", "activity", "time", last_column]
    return FigureList(title, columns, rows, note, left=left, code=(0, 1))

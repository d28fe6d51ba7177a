"""The top of a run's page: one step now and after the change, and the figures of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepscope.analyze.findings import Finding
from stepscope.analyze.wall_time import CHECKPOINTS, time_by_part
from stepscope.analyze.what_if import what_if
from stepscope.errors import StepscopeError
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import Summary
from stepscope.report.html.page_content import Bar, BarPart, Tile
from stepscope.units import format_bytes, format_duration, format_flop_per_s

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

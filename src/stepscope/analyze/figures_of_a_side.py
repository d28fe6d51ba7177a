"""What do the runs of a side come to? Medians over its runs, and what to doubt about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.analyze.differences import mixtures_in
from stepscope.analyze.sides import Measured, Side
from stepscope.analyze.throughput import doubts_about, step_times
from stepscope.records import schema
from stepscope.stats import Interval, interval_of, known_median, median


@dataclass(frozen=True)
class Figures:
    """What the runs of a side came to: medians over its runs, None where no run knows."""

    name: str
    runs: int
    samples_per_s: Interval | None
    step_s: float | None
    phases: dict[str, float] | None
    peak_memory_bytes: float | None
    test_accuracy: float | None
    warnings: list[str]


def figures_of(side: Side) -> Figures:
    """Put the runs of a side together."""
    return Figures(
        side.name,
        len(side.runs),
        interval_of(side.rates) if side.runs else None,
        known_median(map(_step_s, side.runs)),
        _phases(side),
        known_median(_recorded(each, "peak_memory_bytes") for each in side.runs),
        known_median(_recorded(each, "test_accuracy") for each in side.runs),
        [*side.left_out, *mixtures_in(side), *_lost_workers(side), *_doubts(side)],
    )


def _lost_workers(side: Side) -> list[str]:
    """Say how many runs went on with fewer loader workers than were asked for."""
    lost = sum(map(_has_lost_workers, side.runs))
    return [f"{lost} of {len(side.runs)} runs lost loader workers"] if lost else []


def _has_lost_workers(measured: Measured) -> bool:
    recorded = (measured.metrics or {}).get("workers_lost")
    if recorded is not None or measured.run is None:
        return bool(recorded)
    return any(event["event"] == "workers_fallback" for event in measured.run.events)


def _doubts(side: Side) -> list[str]:
    """Say how many runs have steps that drift or do not settle, with one of them as an example."""
    found: dict[str, list[str]] = {}
    for run in (each.run for each in side.runs if each.run):
        for doubt, how in doubts_about(run).items():
            found.setdefault(doubt, []).append(f"{run.path.name}: {how}")
    return [
        f"steps {doubt} in {len(examples)} of {len(side.runs)} runs ({examples[0]})"
        for doubt, examples in found.items()
    ]


def _step_s(measured: Measured) -> float | None:
    times = step_times(measured.run) if measured.run else []
    return median(times) if times else (measured.metrics or {}).get("step_s")


def _phases(side: Side) -> dict[str, float] | None:
    seen = [_recorded(each, "phases") for each in side.runs if each.run]
    known = [phases for phases in seen if phases]
    if not known:
        return None
    return {phase: median([phases[phase]["share"] for phases in known]) for phase in schema.PHASES}


def _recorded(measured: Measured, figure: str) -> Any:
    summary = measured.run.summary if measured.run else {}
    return summary.get(figure, (measured.metrics or {}).get(figure))

"""The verdict on a run: the one change that saves most of its wall time, and how much."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepscope.analyze.findings import Finding, findings_of
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import Summary, Verdict
from stepscope.units import format_duration, format_share

# The least speed-up that is worth a change.
_WORTHWHILE = 1.05
# Half the width of a prediction's interval, as a logarithm of the time saved: bench/what_if.py.
_UNSURE = 0.16
_LEAST_LEFT = 0.02  # of the wall time: no change saves everything
_IN_DOUBT = ("busy_machine", "throttling")


def verdict_on(run: Run, findings: list[Finding] | None = None) -> Verdict:
    """Return the change to make first, or that there is nothing obvious to gain."""
    found = findings_of(run) if findings is None else findings
    wall_s = run.summary.get("wall_s")
    if run.status not in (schema.COMPLETED, schema.RUNNING):
        return _verdict(_ending(run), run.status)
    doubt = next((each for each in found if each.name in _IN_DOUBT), None)
    if doubt is not None:
        return _verdict(doubt.text, doubt.name, command=doubt.command)
    best = max(found, key=lambda each: each.saves_s or 0.0, default=None)
    if best is None or not wall_s or not best.saves_s:
        return _verdict(_nothing(run.summary), "none")
    speedup, interval = expected_speedup(wall_s, best.saves_s)
    if speedup < _WORTHWHILE:
        return _verdict(_nothing(run.summary), "none")
    gain = f"about {speedup:.2g} times faster" if speedup < 10 else "about 10 times faster or more"
    after_s = wall_s / speedup
    change = best.change or "change this"
    text = (
        f"{best.text} {change[0].upper()}{change[1:]}: {gain} ({interval[0]:.2g} to "
        f"{interval[1]:.2g}), {format_duration(wall_s)} becomes about {format_duration(after_s)}."
    )
    return _verdict(text, best.name, speedup, interval, best.command)


def expected_speedup(wall_s: float, saves_s: float) -> tuple[float, list[float]]:
    """Return the speed-up of the whole run, and its interval."""

    def after(saved_s: float) -> float:
        return wall_s / max(wall_s - saved_s, _LEAST_LEFT * wall_s)

    low, high = (after(saves_s * math.exp(sign * _UNSURE)) for sign in (-1, 1))
    return after(saves_s), [low, high]


def _verdict(
    text: str,
    cause: str,
    speedup: float | None = None,
    interval: list[float] | None = None,
    command: str | None = None,
) -> Verdict:
    return {
        "text": text,
        "cause": cause,
        "expected_speedup": speedup,
        "interval": interval,
        "command": command,
    }


def _nothing(figures: Summary) -> str:
    """Say what the time goes into if nothing stands out."""
    phases = figures.get("phases")
    if not phases:
        why = (figures.get("absent") or {}).get("phases", "no step is recorded")
        return f"No verdict: {why}."
    computing = sum(phases[name]["share"] for name in ("forward", "backward", "optimizer"))
    text = f"Nothing obvious to gain: {format_share(computing)} of a step is computation"
    share = figures.get("share_of_peak")
    if share is not None:
        text += f", at {format_share(share)} of this machine's peak"
    return f"{text}."


def about_accounted_share(figures: Summary) -> Iterator[str]:
    """Yield how much of the epochs' own clock the steps account for, if it is off by over 1 %."""
    accounted = figures.get("accounted_share")
    if accounted is not None and abs(accounted - 1) > 0.01:
        yield f"steps account for {format_share(accounted)} of the time of their epochs"


def _ending(run: Run) -> str:
    reason = run.info.get("reason")
    because = f": {str(reason).rstrip('.')}" if reason else ""
    return f"The run ended as {run.status.replace('_', ' ')}{because}."

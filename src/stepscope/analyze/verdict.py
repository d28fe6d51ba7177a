"""The verdict on a run: the one change that saves most of its wall time, and how much."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.findings import Finding, findings_of
from stepscope.analyze.what_binds import about_device
from stepscope.analyze.what_if import expected_speedup
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import Summary, Verdict
from stepscope.units import format_duration, format_share

# The least speed-up that is worth a change.
_WORTHWHILE = 1.05
_MOST_STATED = 10
_IN_DOUBT = ("busy_machine", "throttling")
# What may end a longer run comes before a gain below this.
_THREATS = ("growing_memory", "swapping")
_PRESSING = 1.3
_NO_GAIN: Verdict = {
    "text": "",
    "cause": "",
    "expected_speedup": None,
    "interval": None,
    "command": None,
}


def verdict_on(run: Run, findings: list[Finding] | None = None) -> Verdict:
    """Return the change to make first, or that there is nothing obvious to gain."""
    found = findings_of(run) if findings is None else findings
    wall_s, best, speedup, interval = run.summary.get("wall_s"), None, 1.0, [1.0, 1.0]
    if run.status not in (schema.COMPLETED, schema.RUNNING):
        return {**_NO_GAIN, "text": _ending(run), "cause": run.status}
    if wall_s:
        best = max(found, key=lambda each: each.saves_s or 0.0, default=None)
        speedup, interval = expected_speedup(wall_s, (best and best.saves_s) or 0.0)
    first = [each for each in found if each.name in _IN_DOUBT]
    if speedup < _PRESSING:
        first += [each for each in found if each.name in _THREATS]
    if first:
        about = first[0]
        return {**_NO_GAIN, "text": about.text, "cause": about.name, "command": about.command}
    if wall_s is None and found:  # the run has not ended, so no gain of the whole can be expected
        about = found[0]
        change = f" {about.change[0].upper()}{about.change[1:]}." if about.change else ""
        text = f"{about.text}{change}"
        return {**_NO_GAIN, "text": text, "cause": about.name, "command": about.command}
    if best is None or wall_s is None or speedup < _WORTHWHILE:
        return {**_NO_GAIN, "text": _nothing(run.summary), "cause": "none"}
    change = best.change or "change this"
    return {
        "text": f"{best.text} {change[0].upper()}{change[1:]}: {_gain(speedup, interval)}, "
        f"{format_duration(wall_s)} becomes {format_duration(wall_s / speedup)}.",
        "cause": best.name,
        "expected_speedup": speedup,
        "interval": interval,
        "command": best.command,
    }


def _gain(speedup: float, interval: list[float]) -> str:
    """Return `about 1.7 times faster (1.5 to 1.9)`."""
    if speedup >= _MOST_STATED:
        return f"about {_MOST_STATED} times faster or more"
    low, middle, high = (
        f"{each:.{2 if each < 1.5 else 1}f}" for each in (interval[0], speedup, interval[1])
    )
    return f"about {middle} times faster ({low} to {high})"


def _nothing(figures: Summary) -> str:
    """Say what the time goes into if nothing stands out."""
    phases = figures.get("phases")
    if not phases:
        why = (figures.get("absent") or {}).get("phases", "no step is recorded")
        return f"No verdict: {why}."
    if (device := figures.get("device")) and (what_binds := about_device(device)):
        nothing = "Nothing obvious to gain. " if device["bound_by"] == "device" else ""
        return nothing + what_binds
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

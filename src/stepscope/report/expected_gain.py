"""What a finding would bring, in words, and what readers look for in a verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.analyze.findings import Finding
from stepscope.analyze.what_if import expected_speedup
from stepscope.records.types import Verdict
from stepscope.units import format_duration

# A smaller speed-up is given as the time that it saves.
_LEAST_SPEEDUP = 1.05
_MOST_SPEEDUP = 10.0
_LEAST_SAVED = 0.005  # of the wall time
_GAIN = re.compile(r"(?:about )?\d[\d.,]* times faster(?: or more)?")


def gain_of(finding: Finding, wall_s: float | None) -> str | None:
    """Return what a change would bring: `1.9x faster (1.7 to 2.1)` or `11 s a run`."""
    if not finding.saves_s:
        return None
    saved = f"{format_duration(finding.saves_s)} a run"
    if not wall_s:
        return saved
    if finding.saves_s < _LEAST_SAVED * wall_s:
        return None
    speedup, (low, high) = expected_speedup(wall_s, finding.saves_s)
    if speedup < _LEAST_SPEEDUP:
        return saved
    if speedup >= _MOST_SPEEDUP:
        return "10x faster or more"
    return f"{_times(speedup)}x faster ({_times(low)} to {_times(high)})"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1.5 else f"{ratio:.1f}"


def change_of(finding: Finding) -> str | None:
    """Return what to change, as the beginning of a sentence."""
    return f"{finding.change[0].upper()}{finding.change[1:]}" if finding.change else None


def phrases_to_stress(verdict: Verdict, findings: Sequence[Finding]) -> list[str]:
    """Return what readers of a verdict look for first: the change and the gain."""
    if verdict["expected_speedup"] is None:
        return []
    changes = (change_of(each) for each in findings if each.name == verdict["cause"])
    gain = _GAIN.search(verdict["text"])
    return [*(each for each in changes if each), *([gain[0]] if gain else [])]

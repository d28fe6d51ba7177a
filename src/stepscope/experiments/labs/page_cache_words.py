"""Whether files that were to be read cold were so."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.experiments.labs.lab_trials import Tried
from stepscope.records.run_reader import Run
from stepscope.units import format_share


def not_cold(tried: Iterable[Tried]) -> list[dict[str, str]]:
    """Tell where the page cache was not cold, of runs in which it should have been."""
    reasons = [_why_not_cold(run) for each in tried for run in each.runs]
    known = dict.fromkeys(reason for reason in reasons if reason is not None)
    return [{"name": "cold page cache", "reason": reason} for reason in known]


def _why_not_cold(run: Run) -> str | None:
    made = run.summary.get("page_cache")
    if made is None:
        return str(run.summary["absent"].get("page_cache"))
    if made["cold_share"] == 1:
        return None
    share = "an unknown share" if made["cold_share"] is None else format_share(made["cold_share"])
    return f"{share} of the files was cold ({made['how']}). {made['reason'] or ''}".strip()

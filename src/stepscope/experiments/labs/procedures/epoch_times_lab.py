"""How long an epoch takes, and how much of it is loading. The total is timed separately."""

from __future__ import annotations

from pathlib import Path

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import try_settings
from stepscope.stats import median
from stepscope.units import format_duration, format_share


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Train once a round, and lay the epochs side by side."""
    tried, missing = try_settings(plan, folder, tools)
    rows = [row for each in tried for row in each.curve()]
    if not rows:
        reason = tried[0].status if tried else missing[0]["reason"]
        return found(f"No answer: the training did not complete ({reason}).", False, rows, missing)
    later = rows[1:] or rows
    total_s, loading_s, other_s = (
        sum(row[name] for row in rows) for name in ("total_s", "loading_s", "other_s")
    )
    epoch_s = median([row["total_s"] for row in later])
    share = sum(row["loading_s"] for row in later) / sum(row["total_s"] for row in later)
    answer = (
        f"An epoch takes {format_duration(epoch_s)} (median without the first, which took "
        f"{format_duration(rows[0]['total_s'])}); {format_share(share)} of that is loading. "
        f"All {len(rows)} epochs: {format_duration(total_s)} by a clock of its own, "
        f"{format_duration(loading_s)} of it loading; loading and training leave "
        f"{format_duration(other_s)} of it out."
    )
    return found(answer, True, rows, missing)

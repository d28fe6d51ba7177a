"""The protocol of measurements on small boards: one fixed training, the mean of its last epochs.

The protocol also fixes the machine: power mode, clocks, fan, storage. What of it this machine or
this version cannot fix or read is listed as missing, and the figures are worth that much less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.experiments.labs import Finding, Tools, found
from stepscope.experiments.labs.cache import not_cold
from stepscope.experiments.labs.plan import Plan
from stepscope.experiments.labs.tried import try_settings
from stepscope.hardware.pseudo_files import first_line_of
from stepscope.stats import known_mean
from stepscope.units import format_duration, format_share

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_FIXED = "performance"
_COLUMNS = ("loading_s", "training_s", "other_s", "total_s", "loss", "train_accuracy")


def investigate(plan: Plan, folder: Path, tools: Tools) -> Finding:
    """Train as the protocol says, and take the mean of all epochs but the first."""
    tried, missing = try_settings(plan, folder, tools)
    missing += [*_clocks(), *not_cold(tried)]
    rows = [row for each in tried for row in each.curve()]
    if not rows:
        reason = tried[0].status if tried else missing[0]["reason"]
        return found(f"No answer: the training did not complete ({reason}).", False, rows, missing)
    later = rows[1:] or rows
    mean: dict[str, Any] = {"epoch": f"mean of {later[0]['epoch']} to {later[-1]['epoch']}"}
    mean |= {name: known_mean(row[name] for row in later) for name in _COLUMNS}
    share = mean["loading_s"] / mean["total_s"]
    answer = (
        f"An epoch takes {format_duration(mean['total_s'])} (mean of {len(later)} without the "
        f"first, which took {format_duration(rows[0]['total_s'])}), {format_share(share)} of it "
        f"loading, with {plan.spec.workers} workers, prefetch {plan.spec.prefetch} and batches of "
        f"{plan.spec.batch_size}."
    )
    return found(answer, True, [*rows, mean], missing, rows)


def _clocks() -> list[dict[str, str]]:
    governor = first_line_of(_GOVERNOR)
    if governor == _FIXED:
        return []
    found = "this machine does not tell" if governor is None else f"the governor is {governor}"
    return [{"name": "frequency scaling off", "reason": f"{found}; wanted {_FIXED}."}]

"""How much of a step is communication with nothing to hide behind?"""

from __future__ import annotations

from stepscope.records.table import Table
from stepscope.stats import quantile


def exposed_communication(steps: Table, dropped: list[int]) -> dict[str, float] | None:
    """Return how long steps communicate with nothing to hide it behind; None where unknown."""
    known = [
        (exposed, took)
        for exposed, took, epoch in zip(
            steps["communication_s"], steps["step_s"], steps["epoch"], strict=True
        )
        if exposed is not None and epoch not in dropped
    ]
    if not known:
        return None
    values = sorted(exposed for exposed, _ in known)
    return {
        "share": sum(values) / sum(took for _, took in known),
        "mean_s": sum(values) / len(values),
        "median_s": quantile(values, 0.5),
        "p95_s": quantile(values, 0.95),
        "p99_s": quantile(values, 0.99),
    }

"""What each setting of a sweep came to, over its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.node_kinds import by_node_kind
from stepscope.analyze.setting_names import settings_of
from stepscope.analyze.throughput import rate_of_trial
from stepscope.records import schema
from stepscope.records.sweep import Sweep, Trial
from stepscope.stats import Interval, interval_of, known_median


def rows_of(sweep: Sweep) -> list[dict[str, Any]]:
    """Put the rounds of each setting together, in the order in which they were asked for.

    On several kinds of node, a setting has a row for each.
    """
    sweep = by_node_kind(sweep)
    return [
        _row([trial for trial in sweep.trials if trial.values == values])
        for values in settings_of(sweep)
    ]


def _row(trials: Sequence[Trial]) -> dict[str, Any]:
    done = [trial.metrics for trial in trials if trial.status == schema.COMPLETED]
    known = [rate_of_trial(each) for each in done]
    rates = [each.samples_per_s for each in known if each.samples_per_s is not None]
    rate = interval_of(rates)._asdict() if rates else dict.fromkeys(Interval._fields)
    return {
        "values": trials[0].values,
        "runs": len(trials),
        "completed": len(done),
        "samples_per_s": rate,
        "step_s": known_median(each.get("step_s") for each in done),
        "data_share": known_median(map(_data_share, done)),
        "peak_memory_bytes": max(
            (each["peak_memory_bytes"] for each in done if each.get("peak_memory_bytes")),
            default=None,
        ),
        "test_accuracy": known_median(each.get("test_accuracy") for each in done),
        "validation_accuracy": known_median(each.get("validation_accuracy") for each in done),
    }


def _data_share(metrics: Mapping[str, Any]) -> float | None:
    phases = metrics.get("phases") or {}
    total = sum(phases.values())
    return phases["data"] / total if total else None

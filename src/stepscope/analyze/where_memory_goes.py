"""Where did the memory of a run go? The bill that was forecast, beside what was measured.

An item that was measured in the run counts with that; the others with their forecast. What their
sum leaves of the peak is unexplained.
"""

from __future__ import annotations

from typing import Any


def compare_with_forecast(
    known: dict[str, Any], peak_bytes: int | None
) -> tuple[dict[str, Any] | None, str]:
    """Return the bill of a run that has ended; where there is none, None and the reason."""
    forecast: dict[str, Any] = known.get("forecast") or {}
    if "items" not in forecast:
        return None, forecast.get("reason") or "the run ended before its memory was forecast"
    measured: dict[str, int] = known.get("measured_bytes") or {}
    items = {
        name: {**item, "measured_bytes": measured.get(name)}
        for name, item in forecast["items"].items()
    }
    explained = sum(
        item["bytes"] if item["measured_bytes"] is None else item["measured_bytes"]
        for item in items.values()
    )
    bill = {**forecast, "items": items, "peak_memory_bytes": peak_bytes}
    if peak_bytes:
        bill |= {
            "error_share": forecast["total_bytes"] / peak_bytes - 1,
            "unexplained_bytes": peak_bytes - explained,
            "unexplained_share": (peak_bytes - explained) / peak_bytes,
        }
    return bill, ""

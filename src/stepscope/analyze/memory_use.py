"""Where did the memory of a run go? The forecast memory bill beside the measured peaks.

An item counts with its measured size where there is one, else with its forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from stepscope.records.types import BillItem, MemoryBill, MemoryForecast, PoolUse

_POOLS = ("host", "device", "unified")


def compare_with_forecast(
    forecast: MemoryForecast | None,
    measured_bytes: Mapping[str, int],
    host_peak_bytes: int | None,
    device_peak_bytes: int | None = None,
    *,
    took_a_step: bool = True,
) -> tuple[MemoryBill | None, str]:
    """Return the memory bill of a finished run, by pool and in total, or None and the reason."""
    if forecast is None or "items" not in forecast:
        reason = (forecast or {}).get("reason")
        return None, reason or "the run ended before its memory was forecast"
    items: dict[str, BillItem] = {
        name: {**item, "measured_bytes": measured_bytes.get(name)}
        for name, item in forecast["items"].items()
    }
    peaks = {
        "host": host_peak_bytes,
        "device": device_peak_bytes,
        "unified": _together([host_peak_bytes, device_peak_bytes]),
    }
    pools = {
        pool: _compare(
            [item for item in items.values() if item["pool"] == pool],
            peaks[pool],
            took_a_step,
        )
        for pool in pools_of(items)
    }
    whole = _compare(
        list(items.values()),
        _together([each["peak_bytes"] for each in pools.values()]),
        took_a_step,
    )
    compared = {name: figure for name, figure in whole.items() if name != "peak_bytes"}
    peak = {"peak_memory_bytes": whole["peak_bytes"]}
    return cast("MemoryBill", {**compared, **forecast, **peak, "items": items, "pools": pools}), ""


def pools_of(items: Mapping[str, BillItem]) -> list[str]:
    """Return the pools of a bill's items."""
    used = {item["pool"] for item in items.values()}
    return [pool for pool in _POOLS if pool in used]


def _compare(items: list[BillItem], peak_bytes: int | None, took_a_step: bool) -> PoolUse:
    forecast_bytes = sum(item["bytes"] for item in items)
    if not peak_bytes or not took_a_step:
        return {"total_bytes": forecast_bytes, "peak_bytes": peak_bytes}
    explained = sum(
        item["bytes"] if item["measured_bytes"] is None else item["measured_bytes"]
        for item in items
    )
    return {
        "total_bytes": forecast_bytes,
        "peak_bytes": peak_bytes,
        "error_share": forecast_bytes / peak_bytes - 1,
        "unexplained_bytes": peak_bytes - explained,
        "unexplained_share": (peak_bytes - explained) / peak_bytes,
    }


def _together(peaks: list[int | None]) -> int | None:
    """Add up peaks, which need not coincide; None if one is unknown."""
    return None if None in peaks else sum(peak for peak in peaks if peak is not None)

"""The roofline of a run: forward and backward under what the machine could do.

Both axes are logarithmic, so that the roof is two straight lines: to the left of the ridge memory
is the limit, to the right of it arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.analyze.limit import attainable_flop_per_s
from stepscope.report.charts import Chart, Mark
from stepscope.units import format_flop_per_s, format_share

_GIGA = 1e9
_ROOM = 4.0  # how far the roof reaches beyond ridge and phases, on either side
_ROOF = "roof"


def roofline_chart(roofline: Mapping[str, Any] | None) -> Chart:
    """Describe the roofline; without a peak there is nothing to hold the phases against."""
    marks = list(_marks(roofline)) if roofline and roofline["peak"] else []
    return Chart(
        "How near the limit: forward and backward under the roof",
        "roofline",
        "operations a byte, FLOP/byte (bytes are estimated)",
        "GFLOP/s",
        marks,
        _in_words(roofline) if marks and roofline else "",
    )


def about_limit(flop_per_s: float, summary: Mapping[str, Any]) -> str:
    """Say in one line what was achieved, and how much of the peak that is."""
    share = summary.get("share_of_peak")
    if share is not None and share > 1:
        peak = (
            f"{format_share(share)} of the peak that is kept, which was measured on a busy machine"
        )
        held_against = f"{peak}: stepscope doctor --peaks"
    elif share is not None:
        held_against = f"{format_share(share)} of this machine's peak"
    else:
        held_against = (summary.get("absent") or {}).get("share_of_peak", "no peak is known")
    return f"achieved {format_flop_per_s(flop_per_s)}: {held_against}"


def _marks(roofline: Mapping[str, Any]) -> Iterator[Mark]:
    peak = roofline["peak"]
    phases = {
        name: phase
        for name, phase in roofline["phases"].items()
        if phase["flop_per_s"] and phase["flop_per_byte"]
    }
    ridge = peak["flop_per_s"] / peak["bytes_per_s"]
    at = [ridge, *(phase["flop_per_byte"] for phase in phases.values())]
    for flop_per_byte in (min(at) / _ROOM, ridge, max(at) * _ROOM):
        height = attainable_flop_per_s(peak, flop_per_byte)
        yield Mark(flop_per_byte, height / _GIGA, _ROOF)
    for name, phase in phases.items():
        yield Mark(phase["flop_per_byte"], phase["flop_per_s"] / _GIGA, name)


def _in_words(roofline: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} reaches {format_share(phase['share_of_roof'])} of its roof"
        for name, phase in roofline["phases"].items()
        if phase["share_of_roof"] is not None
    )

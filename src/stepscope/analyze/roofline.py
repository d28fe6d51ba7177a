"""How close does the run come to the peak of its machine?

The roofline (Williams, Waterman and Patterson, 2009) gives the attainable rate of a phase: the
lesser of the compute peak and of the bandwidth times its operations per byte. Its bytes are
estimated from the tensors of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Literal

from stepscope.analyze.phase_shares import counted_steps
from stepscope.records.table import Table
from stepscope.records.types import PeakRecord, RooflinePhase, StepFlops, Summary

FIGURES = ("flop_per_s", "share_of_peak", "roofline")
NOTHING_COUNTED = "the network has no matrix product, convolution or attention to count"


def how_near_the_limit(
    steps: Table,
    dropped: list[int],
    flops: StepFlops | None,
    peak: PeakRecord | None,
) -> Summary:
    """Return `flop_per_s`, `share_of_peak` and the `roofline`, each None if unknown."""
    counted = counted_steps(steps, dropped)
    step_s = _total(steps, "step_s", counted)
    each_step = flops["forward"] + flops["backward"] if flops else 0
    if flops is None or not each_step or not step_s:
        return {"flop_per_s": None, "share_of_peak": None, "roofline": None}
    full_steps = float(sum(counted))  # steps like the one that was counted
    samples = list(compress(steps["samples"], counted))
    if flops["per_sample"] and None not in samples:
        full_steps = sum(samples) * flops["per_sample"] / each_step
    flop_per_s = each_step * full_steps / step_s
    share_of_peak = flop_per_s / peak["flop_per_s"] if peak else None
    moved = flops["estimated_bytes"]
    if moved is None:
        return {"flop_per_s": flop_per_s, "share_of_peak": share_of_peak, "roofline": None}
    on_device = next(compress(steps["forward_device_s"], counted)) is not None

    def placed(phase: Literal["forward", "backward"]) -> RooflinePhase:
        took_s = _total(steps, f"{phase}_device_s" if on_device else f"{phase}_s", counted)
        return _placed(flops[phase], moved[phase], took_s / full_steps, peak)

    return {
        "flop_per_s": flop_per_s,
        "share_of_peak": share_of_peak,
        "roofline": {
            "peak": peak,
            "phases": {"forward": placed("forward"), "backward": placed("backward")},
        },
    }


def attainable_flop_per_s(peak: PeakRecord, flop_per_byte: float) -> float:
    """Return the height of the roof at an arithmetic intensity."""
    return min(peak["flop_per_s"], peak["bytes_per_s"] * flop_per_byte)


def _placed(
    flop: int, estimated_bytes: int, took_s: float, peak: PeakRecord | None
) -> RooflinePhase:
    """Return the position of a phase under the roof, from its operations, bytes and time."""
    flop_per_byte = flop / estimated_bytes
    flop_per_s = flop / took_s if took_s else None
    roof = attainable_flop_per_s(peak, flop_per_byte) if peak else None
    return {
        "flop": flop,
        "estimated_bytes": estimated_bytes,
        "flop_per_byte": flop_per_byte,
        "flop_per_s": flop_per_s,
        "roof_flop_per_s": roof,
        "share_of_roof": flop_per_s / roof if flop_per_s and roof else None,
    }


def _total(steps: Table, column: str, counted: Sequence[bool]) -> float:
    return sum(value or 0.0 for value in compress(steps[column], counted))

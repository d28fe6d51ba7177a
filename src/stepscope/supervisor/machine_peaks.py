"""The peak rates of this machine: measured in a child process, stored, and looked up for a run."""

from __future__ import annotations

import time

from stepscope.errors import MachineError
from stepscope.hardware.host import available_bytes, cpu_mhz, describe_host, pressure_percent
from stepscope.hardware.machine_setup import is_prepared
from stepscope.hardware.peak_flops import conditions_of, find_peak, keep_better
from stepscope.hardware.procfs import system_root
from stepscope.records.types import PeakRecord, PeakRequest, PeaksAnswer, RunRecord
from stepscope.supervisor.ask_process import PEAKS, ask_process

MATRIX_SIZES = (256, 512, 1024, 2048, 4096, 8192)
ARRAY_BYTES = 128 * 2**20  # three of these are more than a cache holds
_PART_OF_MEMORY = 12  # three arrays must leave a small board room for the rest

HOW_TO_MEASURE = "stepscope doctor --peaks"
PREPARE = "stepscope doctor --apply"


def measure_peaks() -> PeaksAnswer:
    """Measure the peaks of this machine, store the best, and return all stored ones."""
    array_bytes = min(ARRAY_BYTES, available_bytes() // _PART_OF_MEMORY)
    pressure_cpu = pressure_percent("cpu")
    request: PeakRequest = {"matrix_sizes": list(MATRIX_SIZES), "array_bytes": array_bytes}
    answer = ask_process(PEAKS, request)
    clock_mhz, host = cpu_mhz(), describe_host()
    peaks = []
    for found in answer["peaks"]:
        conditions = conditions_of({**host, **found["environment"]}, found["precision"])
        assert conditions is not None, "the process that measured has described its torch"
        measured: PeakRecord = {
            "conditions": conditions,
            "flop_per_s": found["flop_per_s"],
            "bytes_per_s": found["bytes_per_s"],
            "matrix_size": found["matrix_size"],
            "array_bytes": array_bytes,
            "pressure_cpu": pressure_cpu,
            "cpu_mhz": clock_mhz,
            "measured_unix_s": time.time(),
        }
        peaks.append(keep_better(measured))
    if not peaks:
        reasons = "; ".join(f"{what}: {reason}" for what, reason in answer["left_out"].items())
        raise MachineError(f"no peak could be measured: {reasons}.")
    return {"peaks": peaks, "left_out": answer["left_out"]}


def peak_for(info: RunRecord, precision: str | None = None) -> tuple[PeakRecord | None, str | None]:
    """Return the peak to compare a run with, or the reason why there is none.

    `precision` is that of its operations, if it was determined; else the spec has it.
    """
    precision = precision or str(info["spec"].get("precision", "fp32"))
    conditions = conditions_of(info["environment"], precision)
    if conditions is None:
        return None, "the run ended before torch was loaded"
    if (peak := find_peak(conditions)) is not None:
        return peak, None
    what = f"{precision} on {conditions['device']}{_with_threads(conditions['threads'])}"
    # A prepared machine has other clocks, and perhaps other CPUs, than when the run is over.
    if is_prepared(system_root()):
        return None, f"no peak of the prepared machine for {what}: {PREPARE}, then {HOW_TO_MEASURE}"
    return None, f"no peak of this machine for {what}: {HOW_TO_MEASURE}"


def _with_threads(count: int | None) -> str:
    return "" if count is None else f" with {count} thread{'s' * (count > 1)}"

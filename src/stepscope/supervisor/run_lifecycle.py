"""The life of a run folder: supervise the process that fills it, then write its summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.analyze.run_summary import summarize
from stepscope.hardware.conditions import describe_conditions, describe_end
from stepscope.hardware.host import describe_host
from stepscope.hardware.procfs import system_root
from stepscope.records import run_folder, run_reader, schema
from stepscope.supervisor.child_supervisor import (
    Outcome,
    RunListener,
    SupervisedProcess,
    stop_signals,
    supervise,
)
from stepscope.supervisor.machine_peaks import peak_for


def run_to_end(
    made: run_folder.RunFolder,
    supervised: SupervisedProcess,
    listener: RunListener,
    *,
    elapsed_s: float = 0.0,
    resumed: str | None = None,
    taken_up: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run a supervised process in a folder and close the folder, whatever happens.

    `taken_up` is written to `run.json` as soon as this process holds the folder.
    """
    with made.held(), stop_signals(pausing=supervised.own_session) as signals:  # until it is closed
        if resumed:
            made.restore_missing_files()
            made.add_event("resume", elapsed_s, after=resumed)
        root = system_root()
        environment = {**describe_host(), "conditions": describe_conditions(root)}
        before = made.update_info(
            **(taken_up or {}),
            status=schema.RUNNING,
            reason=None,
            process=os.getpid(),
            environment=environment,
        )
        try:
            energy = supervised.reads_energy and _asks_for_energy(before)
            outcome = supervise(
                made, supervised, listener, signals, elapsed_s=elapsed_s, energy=energy
            )
            if outcome.traceback is not None:
                made.add_event("fault", outcome.wall_s, traceback=outcome.traceback)
            run, measured = run_reader.load_run(made.path), _measured(outcome, before["summary"])
            summary = summarize(run, _beside_peak(run, measured))
        except BaseException as error:
            made.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
            raise
        made.close(
            status=outcome.status,
            reason=outcome.reason,
            process=None,
            environment=_at_the_end(made.read_info()["environment"], root),
            instrument={**outcome.instrument, "off_blocks": summary["off_blocks"]},
            summary=summary,
        )
    return outcome


def lived_s(run: run_reader.Run) -> float:
    """Return the time of the last record of a run, in seconds after its start."""
    ends = [0.0]
    if len(run.steps):
        ends.append(run.steps["start_s"][-1] + run.steps["step_s"][-1])
    ends += run.telemetry["time_s"][-1:]
    ends += [float(event.get("time_s", 0.0)) for event in run.events]
    return max(ends)


def _at_the_end(environment: dict[str, Any], root: Path) -> dict[str, Any]:
    """Add the machine's conditions at the end of the run to its environment."""
    return {**environment, "conditions": describe_end(environment["conditions"], root)}


def _asks_for_energy(info: dict[str, Any]) -> bool:
    """Return whether to read energy sensors: rank 0 does, temporary trials do not."""
    spec = info["spec"]
    return info["kind"] != "trial" and spec.get("energy") != "off" and not spec.get("rank")


def _measured(outcome: Outcome, earlier: dict[str, Any] | None) -> dict[str, Any]:
    """Return the figures that are in no table, with those from before a resume."""
    earlier, device = earlier or {}, outcome.device_memory or {}
    measured_bytes = {**outcome.measured_bytes}
    if "context_bytes" in device:
        measured_bytes["device_context"] = device["context_bytes"]
    return {
        "wall_s": outcome.wall_s,
        "preparation_s": outcome.preparation_s,
        "peak_memory_bytes": _larger(outcome.peak_memory_bytes, earlier.get("peak_memory_bytes")),
        "device_peak_memory_bytes": _larger(
            device.get("peak_bytes"), earlier.get("device_peak_memory_bytes")
        ),
        "layers": outcome.layers or earlier.get("layers"),
        "flops": outcome.flops or earlier.get("flops"),
        "counters": outcome.counters or earlier.get("counters"),
        "memory_bill": {"forecast": outcome.forecast, "measured_bytes": measured_bytes},
        "requests": outcome.requests or earlier.get("requests"),
        "absent": outcome.absent,
    }


def _beside_peak(run: run_reader.Run, measured: dict[str, Any]) -> dict[str, Any]:
    """Add the machine's peak to the figures of a run whose FLOPs were counted."""
    if measured["flops"] is None:
        return measured
    peak, why_not = peak_for(run.info)
    absent = {} if why_not is None else {"share_of_peak": why_not}
    return {**measured, "roofline": {"peak": peak}, "absent": {**measured["absent"], **absent}}


def _larger(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None

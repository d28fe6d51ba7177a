"""The life of a run folder: supervise the process that fills it, then write its summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.hardware.conditions import describe_conditions, describe_end
from stepscope.hardware.host import describe_host
from stepscope.hardware.procfs import system_root
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.folder_sync import FolderSync
from stepscope.records.types import Environment, Summary
from stepscope.supervisor.child_supervisor import (
    Outcome,
    RunListener,
    SupervisedProcess,
    supervise,
)
from stepscope.supervisor.machine_peaks import peak_for
from stepscope.supervisor.signals import stop_signals


def run_to_end(
    made: run_folder.RunFolder,
    supervised: SupervisedProcess,
    listener: RunListener,
    *,
    elapsed_s: float = 0.0,
    resumed: str | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run a supervised process in a folder and close the folder, whatever happens.

    `fields` are written to `run.json` as soon as this process holds the folder.
    """
    with made.held(), stop_signals(pausing=supervised.own_session) as signals:  # until it is closed
        if resumed:
            made.restore_missing_files()
            made.add_event("resume", elapsed_s, after=resumed)
        root = system_root()
        conditions = describe_conditions(root)
        environment: Environment = {**describe_host(), "conditions": conditions}
        before = made.update_info(
            **(fields or {}),
            status=schema.RUNNING,
            reason=None,
            process=os.getpid(),
            environment=environment,
        )
        try:
            spec = before["spec"]
            reads_energy = spec.get("energy") != "off" and not spec.get("rank")
            is_trial = before["kind"] == "trial"
            with FolderSync(made, waits=not is_trial):  # the next trial need not wait
                outcome = supervise(
                    made,
                    supervised,
                    listener,
                    signals,
                    elapsed_s=elapsed_s,
                    energy=supervised.reads_energy and not is_trial and reads_energy,
                )
            if outcome.traceback is not None:
                made.add_event("fault", outcome.wall_s, traceback=outcome.traceback)
            run = run_reader.load_run(made.path)
            summary = summarize(run, _measured(run, outcome, before["summary"]))
        except BaseException as error:
            made.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
            raise
        environment = made.read_info()["environment"]  # with what the child has reported
        made.close(
            status=outcome.status,
            reason=outcome.reason,
            process=None,
            environment={**environment, "conditions": describe_end(conditions, root)},
            instrument={**outcome.result["instrument"], "off_blocks": summary["off_blocks"]},
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


def _measured(run: run_reader.Run, outcome: Outcome, earlier: Summary) -> Measured:
    """Return the figures that are in no table, with those from before a resume."""
    result, device_peak_bytes = outcome.result, None
    measured_bytes = {**result.get("measured_bytes", {})}
    if (device := result.get("device_memory")) is not None:
        device_peak_bytes = device["peak_bytes"]
        if "context_bytes" in device:
            measured_bytes["device_context"] = device["context_bytes"]
    flops = result.get("flops") or earlier.get("flops")
    peak, absent = None, {**result.get("absent", {})}
    if flops is not None:
        peak, why_not = peak_for(run.info, flops.get("precision"))
        if why_not is not None:
            absent["share_of_peak"] = why_not
    return Measured(
        wall_s=outcome.wall_s,
        preparation_s=outcome.preparation_s,
        peak_memory_bytes=_larger(outcome.peak_memory_bytes, earlier.get("peak_memory_bytes")),
        device_peak_memory_bytes=_larger(
            device_peak_bytes, earlier.get("device_peak_memory_bytes")
        ),
        layers=result.get("layers") or earlier.get("layers"),
        flops=flops,
        counters=result.get("counters") or earlier.get("counters"),
        requests=result.get("requests") or earlier.get("requests"),
        forecast=outcome.forecast,
        script=result.get("script", {}),
        measured_bytes=measured_bytes,
        peak=peak,
        absent=absent,
    )


def _larger(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)

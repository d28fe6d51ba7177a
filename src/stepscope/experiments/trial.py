"""A trial of memory: a short real run, in a process that may die, and whether it fits.

It has the data, workers and limit of the real run, but only a few batches
(`train.training_setup.shorten`). Its folder, of kind `trial`, is removed afterwards.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from functools import partial
from pathlib import Path

import psutil

from stepscope.errors import Interrupted, MachineError, RequestError
from stepscope.experiments.batch_bisection import EDGE, BatchTrial
from stepscope.memory_forecast.memory_bill import Limit
from stepscope.processes.training_process import ProcessOptions
from stepscope.records import run_folder, schema
from stepscope.records.run_folder import slug
from stepscope.records.run_reader import Run, load_run
from stepscope.settings import RunSpec
from stepscope.supervisor import preflight
from stepscope.supervisor.child_supervisor import SilentListener
from stepscope.supervisor.memory_guard import Action, holding
from stepscope.supervisor.run_lifecycle import run_to_end
from stepscope.supervisor.start_run import training_of
from stepscope.supervisor.warm_start import ForkServer
from stepscope.units import format_bytes

# --- The folder of a trial: beside the runs, and removed after it


def temporary_folder(out: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder beside the runs, as /tmp may be in memory; remove those of killed processes."""
    beside = next(each for each in (out, *out.absolute().parents) if each.is_dir())
    # It names the machine: on a shared disk, the processes of other machines look dead here.
    prefix = f".trial-{slug(platform.node())}-"
    for folder in beside.glob(f"{prefix}*"):
        maker = folder.name.removeprefix(prefix).partition("-")[0]
        if maker.isdecimal() and not psutil.pid_exists(int(maker)):
            shutil.rmtree(folder, ignore_errors=True)  # it may be another user's
    try:
        return tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=beside)
    except OSError as error:
        raise RequestError(
            f"cannot make a folder for a trial in {str(beside)!r}: {error.strerror}. "
            "Name a writable folder with --out DIR."
        ) from error


def try_out(
    spec: RunSpec,
    limit: Limit,
    pool: str = "host",
    fork_server: ForkServer | None = None,
) -> BatchTrial:
    """Run a spec briefly under its memory limit, and return whether it fits.

    `limit` is that of the `pool` whose peak and forecast are returned.
    """
    preflight.require_one_process(spec, "a trial of its memory")
    judged = partial(
        BatchTrial,
        batch_size=spec.batch_size,
        accumulate=spec.accumulate,
        checkpoint_activations=spec.checkpoint_activations,
    )
    with temporary_folder(Path(spec.out)) as out:
        spec = spec.model_copy(update={"name": "trial", "out": out})
        try:
            preflight.check(spec)
        except MachineError as error:  # /dev/shm is too small for the batches of the workers
            lacking = str(error)
            return judged(fits=False, status=schema.OUT_OF_MEMORY, reason=lacking, exit_code=4)
        made = run_folder.create(Path(out), "trial", "trial", spec.model_dump(mode="json"))
        with holding(spec.memory_limit) as held:
            training = training_of(
                made, spec, held, ProcessOptions(force=True), fork_server=fork_server
            )
            outcome = run_to_end(made, training, SilentListener())
        if outcome.status == schema.INTERRUPTED:
            raise Interrupted("interrupted")
        run = load_run(made.path)
        bill = run.summary.get("memory_bill")
        seen = bill.get("pools", {}).get(pool) if bill else None
        peak = seen["peak_bytes"] if seen else None
        if pool == "host":
            peak = run.summary.get("peak_memory_bytes")
        completed, reason = run.status == schema.COMPLETED, run.info.get("reason")
        if run.status == schema.OUT_OF_MEMORY and reason:
            reason = reason.partition(". ")[0]  # without its advice, which is only a forecast
        if completed:
            reason = why_not(run, limit, peak)
        return judged(
            fits=completed and reason is None,
            peak_memory_bytes=peak,
            forecast_bytes=seen["total_bytes"] if seen else None,
            status=run.status,
            reason=reason,
            exit_code=outcome.exit_code,
        )


def why_not(run: Run, limit: Limit, peak_bytes: int | None) -> str | None:
    """Return why a completed short run does not fit after all, or None."""
    acted = {event.get("action", event["event"]) for event in run.events}
    if acted & {Action.END_WORKER.value, "workers_fallback"}:
        return "it lost loader workers because memory ran out"
    if Action.ASK.value in acted:
        return "it ran short of memory and ignored the request to stop"
    if peak_bytes is not None and peak_bytes > EDGE * limit.bytes:
        edge = f"{EDGE:.0%} of {format_bytes(limit.bytes)}"
        return f"it took {format_bytes(peak_bytes)}, above {edge}: too close for a long run"
    return None

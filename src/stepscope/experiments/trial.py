"""A trial: a short real run, in a process that may die, and what its folder says of it.

It is the run that would be made, with its data, workers and limit, but of a few batches
(`train.training_setup.shorten`). The folder, of kind `trial`, is removed in the end.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path

import psutil

from stepscope.errors import Interrupted, MachineError, RequestError
from stepscope.experiments.batch_bisection import EDGE, BatchTrial
from stepscope.memory_forecast.memory_bill import Limit
from stepscope.processes.training_process import ProcessOptions
from stepscope.records import run_folder, schema
from stepscope.records.run_folder import slug
from stepscope.records.run_reader import Run, load_run
from stepscope.records.types import RunMessage
from stepscope.settings import RunSpec
from stepscope.supervisor import preflight
from stepscope.supervisor.memory_guard import Action, holding
from stepscope.supervisor.run_lifecycle import run_to_end
from stepscope.supervisor.train_child import TrainingProcess
from stepscope.supervisor.warm_start import ForkServer
from stepscope.units import format_bytes

# --- The folder of a trial: beside the runs, and removed after it


def temporary_folder(out: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder beside the runs: what is for all may lie in memory, and would take of it.

    Folders that a killed process has left there are removed.

    Raises:
        RequestError: it cannot be made.
    """
    beside = next(each for each in (out, *out.absolute().parents) if each.is_dir())
    # It names the machine: on a disk that several share, the processes of others look dead here.
    prefix = f".trial-{slug(platform.node())}-"
    _remove_leftovers(beside, prefix)
    try:
        return tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=beside)
    except OSError as error:
        raise RequestError(
            f"cannot make a folder for a trial in {str(beside)!r}: {error.strerror}. "
            "Choose a folder that can be written with --out DIR."
        ) from error


def _remove_leftovers(beside: Path, prefix: str) -> None:
    for folder in beside.glob(f"{prefix}*"):
        maker = folder.name.removeprefix(prefix).partition("-")[0]
        if maker.isdecimal() and not psutil.pid_exists(int(maker)):
            shutil.rmtree(folder, ignore_errors=True)  # it may be another person's


def try_out(
    spec: RunSpec,
    limit: Limit,
    pool: str = "host",
    fork_server: ForkServer | None = None,
) -> BatchTrial:
    """Make a short run of a spec under its memory limit, and say whether it fits.

    `limit` is what the `pool` holds whose peak and forecast are wanted.

    Raises:
        Interrupted: a stop was requested.
        RequestError: the run could not be made, or its folder not be written.
    """
    preflight.require_one_process(spec, "a trial of its memory")
    with temporary_folder(Path(spec.out)) as out:
        spec = spec.model_copy(update={"name": "trial", "out": out})
        try:
            preflight.check(spec)
        except MachineError as error:  # /dev/shm has no room for the batches of the workers
            return BatchTrial(
                spec.batch_size,
                False,
                accumulate=spec.accumulate,
                checkpoint_activations=spec.checkpoint_activations,
                status=schema.OUT_OF_MEMORY,
                reason=str(error),
                exit_code=4,
            )
        made = run_folder.create(Path(out), "trial", "trial", spec.model_dump(mode="json"))
        with holding(spec.memory_limit) as held:
            supervised = TrainingProcess(
                folder=made,
                options=ProcessOptions(force=True),
                has_workers=spec.workers > 0,
                memory_limit=held,
                fork_server=fork_server,
            )
            outcome = run_to_end(made, supervised, SilentListener())
        if outcome.status == schema.INTERRUPTED:
            raise Interrupted("interrupted")
        return _judge(spec, limit, pool, load_run(made.path), outcome.exit_code)


def _judge(spec: RunSpec, limit: Limit, pool: str, run: Run, exit_code: int) -> BatchTrial:
    """Say from a folder whether a run like this one fits; its figures are all of one pool."""
    bill = run.summary.get("memory_bill")
    seen = bill.get("pools", {}).get(pool) if bill else None
    peak = seen["peak_bytes"] if seen else None
    if pool == "host":
        peak = run.summary.get("peak_memory_bytes")
    reason: str | None = run.info.get("reason")
    if run.status == schema.OUT_OF_MEMORY and reason:
        reason = reason.partition(". ")[0]  # what it advises beyond that is a mere forecast
    if run.status == schema.COMPLETED:
        reason = why_not(run, limit, peak)
    return BatchTrial(
        spec.batch_size,
        run.status == schema.COMPLETED and reason is None,
        peak,
        seen["total_bytes"] if seen else None,
        spec.accumulate,
        spec.checkpoint_activations,
        run.status,
        reason,
        exit_code,
    )


def why_not(run: Run, limit: Limit, peak_bytes: int | None) -> str | None:
    """Say why a completed short run does not fit after all, or None."""
    acted = {event.get("action", event["event"]) for event in run.events}
    if acted & {Action.END_WORKER.value, "workers_fallback"}:
        return "it lost loader workers for want of memory"
    if Action.ASK.value in acted:
        return "memory ran short, and it went on although it was told"
    if peak_bytes is not None and peak_bytes > EDGE * limit.bytes:
        edge = f"{EDGE:.0%} of {format_bytes(limit.bytes)}"
        return f"it took {format_bytes(peak_bytes)}, above {edge}: too near for a long run"
    return None


class SilentListener:
    """Shows nothing: a trial is shown when it has ended."""

    def message(self, message: RunMessage) -> None:
        """Ignore a message of the training."""

    def output(self, line: str) -> None:
        """Ignore a line that the training printed."""

    def stopping(self) -> None:
        """Ignore that the training was asked to stop."""

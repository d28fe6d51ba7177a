"""One run from request to closed folder: started, resumed, supervised."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.errors import RequestError
from stepscope.experiments import preflight
from stepscope.experiments.supervise import Onlooker, Outcome, listening, supervise
from stepscope.hardware.host import describe_host
from stepscope.records import folder, reader, schema
from stepscope.spec import RunSpec
from stepscope.spec.load import validate

Summarize = Callable[[reader.Run, dict[str, Any]], dict[str, Any]]


def start(spec: RunSpec, onlooker: Onlooker, summarize: Summarize) -> tuple[Path, Outcome]:
    """Make a folder, train in it, close it; return where it is and how it ended."""
    preflight.check(spec)
    made = folder.create(Path(spec.out), spec.run_name, "run", spec.model_dump(mode="json"))
    return made.path, _carry_out(made, spec, onlooker, summarize)


def resume(path: Path, onlooker: Onlooker, summarize: Summarize) -> tuple[Path, Outcome]:
    """Go on with a run from its checkpoint, or from the beginning where it has none."""
    run = reader.load_run(path)
    if run.info.get("kind") != "run":
        raise RequestError(f"{run.path} is a {run.info.get('kind')}, and only a run can go on.")
    if run.status == schema.COMPLETED:
        return run.path, Outcome(schema.COMPLETED, None, 0)
    spec = validate(run.spec, where=f"{run.path / schema.RUN}: ")
    preflight.check(spec)
    made = folder.RunFolder(run.path)
    lived_s = _lived_s(run)
    return run.path, _carry_out(made, spec, onlooker, summarize, lived_s, resumed=run.status)


def _carry_out(
    made: folder.RunFolder,
    spec: RunSpec,
    onlooker: Onlooker,
    summarize: Summarize,
    elapsed_s: float = 0.0,
    resumed: str | None = None,
) -> Outcome:
    with made.held(), listening() as signals:  # until the folder is closed
        if resumed:
            made.restore_missing_files()
            made.add_event("resume", elapsed_s, after=resumed)
        before = made.update_info(
            status=schema.RUNNING, reason=None, process=os.getpid(), environment=describe_host()
        )
        try:
            outcome = supervise(
                made, onlooker, signals, elapsed_s=elapsed_s, memory_limit_bytes=spec.memory_limit
            )
            if outcome.traceback is not None:
                made.add_event("fault", outcome.wall_s, traceback=outcome.traceback)
            earlier_peak = (before["summary"] or {}).get("peak_memory_bytes")
            measured = {
                "wall_s": outcome.wall_s,
                "preparation_s": outcome.preparation_s,
                "peak_memory_bytes": _larger(outcome.peak_memory_bytes, earlier_peak),
            }
            summary = summarize(reader.load_run(made.path), measured)
        except BaseException as error:
            made.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
            raise
        made.close(
            status=outcome.status,
            reason=outcome.reason,
            process=None,
            instrument=outcome.instrument,
            summary=summary,
        )
    return outcome


def _lived_s(run: reader.Run) -> float:
    """Return how long the run had lived when it was last heard of."""
    ends = [0.0]
    if len(run.steps):
        ends.append(run.steps["start_s"][-1] + run.steps["step_s"][-1])
    ends += run.telemetry["time_s"][-1:]
    ends += [float(event.get("time_s", 0.0)) for event in run.events]
    return max(ends)


def _larger(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None

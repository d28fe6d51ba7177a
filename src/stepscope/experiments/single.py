"""One run from request to closed folder: started, resumed, supervised."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from stepscope.errors import RequestError
from stepscope.experiments import preflight
from stepscope.experiments.carry_out import Summarize, carry_out
from stepscope.experiments.memory_limit import holding
from stepscope.experiments.supervise import Onlooker, Outcome
from stepscope.experiments.training import training_of
from stepscope.records import folder, reader, schema
from stepscope.spec import RunSpec
from stepscope.spec.load import validate
from stepscope.train.options import Options

Kind = Literal["run", "load"]


def start(
    spec: RunSpec,
    onlooker: Onlooker,
    summarize: Summarize,
    *,
    kind: Kind = "run",
    force: bool = False,
    watchdog: bool = False,
) -> tuple[Path, Outcome]:
    """Make a folder, train in it, close it; return where it is and how it ended.

    A run of the kind `load` drives the loader of the training, and no network. `force` begins also
    what is forecast not to fit; `watchdog` holds a memory limit by looking even where the kernel
    could hold it.
    """
    preflight.check(spec)
    made = folder.create(Path(spec.out), spec.run_name, kind, spec.model_dump(mode="json"))
    outcome = _carry_out(made, spec, onlooker, summarize, force=force, watchdog=watchdog)
    return made.path, outcome


def resume(path: Path, onlooker: Onlooker, summarize: Summarize) -> tuple[Path, Outcome]:
    """Go on with a run from its checkpoint, or from the beginning where it has none."""
    run = reader.load_run(path)
    if run.info.get("kind") not in get_args(Kind):
        raise RequestError(f"{run.path} is a {run.info.get('kind')}, and only a run can go on.")
    if run.status == schema.COMPLETED:
        return run.path, Outcome(schema.COMPLETED, None, 0)
    spec = validate(run.spec, where=f"{run.path / schema.RUN}: ")
    preflight.check(spec)
    made = folder.RunFolder(run.path)
    lived_s = _lived_s(run)
    return run.path, _carry_out(made, spec, onlooker, summarize, lived_s, resumed=run.status)


def _lived_s(run: reader.Run) -> float:
    """Return how long the run had lived when it was last heard of."""
    ends = [0.0]
    if len(run.steps):
        ends.append(run.steps["start_s"][-1] + run.steps["step_s"][-1])
    ends += run.telemetry["time_s"][-1:]
    ends += [float(event.get("time_s", 0.0)) for event in run.events]
    return max(ends)


def _carry_out(
    made: folder.RunFolder,
    spec: RunSpec,
    onlooker: Onlooker,
    summarize: Summarize,
    lived_s: float = 0.0,
    resumed: str | None = None,
    force: bool = False,
    watchdog: bool = False,
) -> Outcome:
    with holding(spec.memory_limit, watchdog=watchdog) as limit:
        charge = training_of(
            made, limit, has_workers=spec.workers > 0, options=Options(force=force)
        )
        return carry_out(made, charge, onlooker, summarize, elapsed_s=lived_s, resumed=resumed)

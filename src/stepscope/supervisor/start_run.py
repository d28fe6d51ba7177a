"""Start or resume one training of ours, from settings to a closed run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from stepscope.errors import RequestError
from stepscope.processes.process_options import ProcessOptions
from stepscope.records import run_folder, run_reader, schema
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate, with_changes
from stepscope.supervisor import preflight
from stepscope.supervisor.child_supervisor import Outcome, RunListener
from stepscope.supervisor.memory_guard import holding
from stepscope.supervisor.rank_processes import find_rank, require_one_process, supervised_training
from stepscope.supervisor.run_lifecycle import lived_s, run_to_end
from stepscope.supervisor.torchrun import in_place, run_in_place

Kind = Literal["run", "load"]


def start(
    spec: RunSpec,
    listener: RunListener,
    *,
    kind: Kind = "run",
    force: bool = False,
    watchdog: bool = False,
) -> tuple[Path, Outcome]:
    """Create a run folder, train in it and close it; return the folder and how the run ended.

    A run of kind `load` only drives the data loader. `force` begins also
    what is forecast not to fit; `watchdog` holds a memory limit by looking even where the kernel
    could hold it.
    """
    place = find_rank()
    spec = spec if place is None else in_place(place, spec)
    if kind == "load":
        require_one_process(spec, "loading without training")
    preflight.check(spec)
    if place is not None:
        return run_in_place(place, None, spec, listener, force=force)
    made = run_folder.create(Path(spec.out), spec.run_name, kind, spec.model_dump(mode="json"))
    outcome = _run(made, spec, listener, force=force, watchdog=watchdog)
    return made.path, outcome


def resume(
    path: Path, listener: RunListener, *, processes: int | None = None
) -> tuple[Path, Outcome]:
    """Continue a run from its checkpoint, or from the beginning if it has none.

    The number of processes may differ from before.
    """
    run = run_reader.load_run(path)
    if run.info.get("kind") not in get_args(Kind):
        raise RequestError(f"{run.path} is a {run.info.get('kind')}, and only a run can go on.")
    if run.status == schema.COMPLETED:
        return run.path, Outcome(schema.COMPLETED, None, 0)
    where = f"{run.path / schema.RUN}: "
    spec = validate(run.spec, where=where)
    place = find_rank()
    if place is not None:
        processes = place.world if processes is None else processes
    if processes is not None:
        spec = with_changes(run.spec, {"processes": processes}, where)
    if place is not None:
        spec = in_place(place, spec)
    preflight.check(spec)
    if place is not None:
        return run_in_place(place, run.path, spec, listener)
    made = run_folder.RunFolder(run.path)
    return run.path, _run(made, spec, listener, lived_s(run), run.status)


def _run(
    made: run_folder.RunFolder,
    spec: RunSpec,
    listener: RunListener,
    elapsed_s: float = 0.0,
    resumed: str | None = None,
    force: bool = False,
    watchdog: bool = False,
) -> Outcome:
    with holding(spec.memory_limit, watchdog=watchdog) as limit:
        return run_to_end(
            made,
            supervised_training(made, spec, limit, ProcessOptions(force=force)),
            listener,
            elapsed_s=elapsed_s,
            resumed=resumed,
            taken_up={"spec": spec.model_dump(mode="json")},
        )

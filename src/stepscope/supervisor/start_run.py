"""Start or resume one training of ours, from settings to a closed run folder."""

from __future__ import annotations

from pathlib import Path

from stepscope.errors import RequestError
from stepscope.hardware.process import find_rank
from stepscope.processes.training_process import ProcessOptions
from stepscope.records import run_folder, run_reader, schema
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import with_changes
from stepscope.supervisor import preflight
from stepscope.supervisor.child_supervisor import Outcome, RunListener, SupervisedProcess
from stepscope.supervisor.hang_watch import DEFAULT_AFTER_S
from stepscope.supervisor.memory_guard import MemoryLimit, holding
from stepscope.supervisor.run_lifecycle import lived_s, run_to_end
from stepscope.supervisor.train_child import TrainingProcess
from stepscope.supervisor.warm_start import ForkServer


def start(
    spec: RunSpec,
    listener: RunListener,
    *,
    force: bool = False,
    hang_after_s: float = 0.0,
    on_hang: str = "warn",
) -> tuple[Path, Outcome]:
    """Create a run folder, train in it and close it; return the folder and how the run ended.

    `force` ignores the memory forecast.
    """
    options = ProcessOptions(force=force, hang_after_s=hang_after_s, on_hang=on_hang)
    if (rank := find_rank()) is not None:
        from stepscope.supervisor import torchrun

        return torchrun.train_rank(rank, None, spec, listener, options)
    preflight.check(spec)
    made = run_folder.create(Path(spec.out), spec.run_name, "run", spec.model_dump(mode="json"))
    with holding(spec.memory_limit) as limit:
        training = training_of(made, spec, limit, options)
        outcome = run_to_end(made, training, listener)
        return made.path, outcome  # it may have been renamed


def resume(
    path: Path, listener: RunListener, *, processes: int | None = None
) -> tuple[Path, Outcome]:
    """Continue a run from its checkpoint, or from the beginning if it has none."""
    run = run_reader.load_run(path)
    if run.info.get("kind") not in ("run", "load"):
        raise RequestError(
            f"{run.path} is a {run.info.get('kind')}; only a run can be resumed. Start it again."
        )
    if run.status == schema.COMPLETED:
        return run.path, Outcome(schema.COMPLETED, None, 0)
    rank, options = find_rank(), ProcessOptions(hang_after_s=DEFAULT_AFTER_S)
    if processes is None and rank is not None:
        processes = rank.world_size
    changes = {} if processes is None else {"processes": processes}
    spec = with_changes(run.spec, changes, f"{run.path / schema.RUN}: ")
    if rank is not None:
        from stepscope.supervisor import torchrun

        return torchrun.train_rank(rank, run.path, spec, listener, options)
    preflight.check(spec)
    made = run_folder.RunFolder(run.path)
    with holding(spec.memory_limit) as limit:
        outcome = run_to_end(
            made,
            training_of(made, spec, limit, options),
            listener,
            elapsed_s=lived_s(run),
            resumed=run.status,
            fields={"spec": spec.model_dump(mode="json")},
        )
    return made.path, outcome


def training_of(
    made: run_folder.RunFolder,
    spec: RunSpec,
    limit: MemoryLimit | None,
    options: ProcessOptions,
    time_limit_s: float | None = None,
    fork_server: ForkServer | None = None,
) -> SupervisedProcess:
    """Return the training of a folder's settings, in one process or several."""
    if spec.processes == 1:
        return TrainingProcess(
            folder=made,
            options=options,
            has_workers=spec.workers > 0,
            memory_limit=limit,
            time_limit_s=time_limit_s,
            hang_after_s=options.hang_after_s,
            on_hang=options.on_hang,
            fork_server=fork_server,
        )
    from stepscope.supervisor.rank_processes import RankProcesses
    from stepscope.supervisor.rank_tables import GrowingTables

    return RankProcesses(
        folder=made,
        spec=spec,
        options=options,
        memory_limit=limit,
        time_limit_s=time_limit_s,
        on_sample=GrowingTables(made.path, spec.processes).update,
    )

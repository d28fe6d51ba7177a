"""Checkpoints: save and load the state of a training, and drop the rows written after it.

Order and augmentation of samples are stateless (`data.sample_order`). The file is replaced
atomically and loaded with `weights_only`, which executes no code.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from stepscope.errors import DISK_FULL_ERRNOS, DataError, RequestError, StepscopeError, disk_full
from stepscope.meter.step_rows import EpochTiming
from stepscope.records import schema
from stepscope.records.csv_log import keep_rows
from stepscope.records.run_reader import rank_folders
from stepscope.records.types import RecordedSpec
from stepscope.train.epoch_plan import Position, Stage
from stepscope.train.recorder import Tally
from stepscope.train.training_setup import Job

# Settings that change neither a loss nor the meaning of a row: paths, loading, and the steps whose
# rows are marked as profiled.
_MAY_CHANGE = frozenset(
    {"name", "out", "data_dir", "source", "access", "endpoint_url", "memory_limit"}
    | {"workers", "prefetch", "persistent_workers", "pin_memory", "pipeline", "layers"}
    | {"counters", "processes"}
    | {"page_cache", "drop_epochs", "pipeline_delay_ms", "source_delay_ms"}
)


@dataclass(frozen=True)
class TrainingProgress:
    """The position in a run, the sums of the current epoch, and the number of processes so far."""

    position: Position = field(default_factory=Position)
    timing: EpochTiming | None = None
    tally: Tally | None = None
    processes: int = 1


@dataclass(frozen=True)
class RankState:
    """The part of a checkpoint that belongs to one rank; a new rank has no random state."""

    progress: TrainingProgress
    random: torch.Tensor | None = None
    random_cuda: list[torch.Tensor] = field(default_factory=list)

    @staticmethod
    def load(saved: Any) -> RankState:
        """Return the state that was saved as plain values."""
        known = saved["progress"]
        progress = TrainingProgress(
            Position(**known["position"]),
            EpochTiming(**known["timing"]) if known["timing"] else None,
            Tally(**known["tally"]) if known["tally"] else None,
        )
        return RankState(progress, saved["random"], saved["random_cuda"])


def save(path: Path, job: Job, progress: TrainingProgress) -> None:
    """Write a checkpoint to a temporary file, then replace the old one."""
    random_cuda = torch.cuda.get_rng_state_all() if job.device.type == "cuda" else []
    own = asdict(RankState(progress, torch.get_rng_state(), random_cuda))
    ranks = job.process_group.gather(own)  # a barrier: the rows of all ranks are on disk
    if job.process_group.rank != 0:
        return
    content = {
        **own,
        "others": ranks[1:],
        "spec": job.spec.model_dump(mode="json"),
        "model": job.model.state_dict(),
        "optimizer": job.optimizer.state_dict(),
        "schedule": job.schedule.state_dict() if job.schedule else None,
        "scaler": job.scaler.state_dict() if job.scaler else None,
    }
    replacement = path.with_suffix(".tmp")
    try:
        with replacement.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        replacement.unlink(missing_ok=True)
        failed = _os_error(error)
        if failed is not None and failed.errno in DISK_FULL_ERRNOS:
            raise disk_full(failed, str(path)) from error
        raise
    replacement.replace(path)


def load(path: Path, job: Job) -> TrainingProgress:
    """Load a checkpoint into a job that was built from the same spec."""
    try:
        content = torch.load(path, map_location=job.device, weights_only=True)
        _check_same_training(path, content["spec"], job.spec.model_dump(mode="json"))
        job.model.load_state_dict(content["model"])
        job.optimizer.load_state_dict(content["optimizer"])
        if job.schedule:
            job.schedule.load_state_dict(content["schedule"])
        if job.scaler:
            job.scaler.load_state_dict(content["scaler"])
        ranks = [RankState.load(each) for each in (content, *content.get("others", []))]
        own = part_of_rank(ranks, job.process_group.rank, job.process_group.world_size)
        if own.random is not None:
            torch.set_rng_state(own.random.cpu())
        if own.random_cuda:
            known = own.random_cuda[: torch.cuda.device_count()]  # saved on a machine with more
            torch.cuda.set_rng_state_all([state.cpu() for state in known])
        return replace(own.progress, processes=len(ranks))
    except StepscopeError:
        raise
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise DataError(
            f"cannot resume from {path}: {type(error).__name__}: {first_line}. "
            "Remove that file to start the run again."
        ) from error


def part_of_rank(saved: list[RankState], rank: int, world_size: int) -> RankState:
    """Return the saved state that a rank resumes from.

    If the number of ranks changed, rank 0 takes the sums of all ranks for the current epoch.
    """
    if len(saved) == world_size:
        return saved[rank]
    first = saved[0].progress
    progress = replace(first, timing=None, tally=None)
    if rank == 0 and first.timing is not None:
        timings = [each.progress.timing for each in saved]
        tallies = [each.progress.tally for each in saved]
        samples = sum(timing.samples for timing in timings if timing)
        tally = Tally.total(tally for tally in tallies if tally)
        progress = replace(first, timing=replace(first.timing, samples=samples), tally=tally)
    return replace(saved[rank], progress=progress) if rank < len(saved) else RankState(progress)


def _check_same_training(path: Path, saved: RecordedSpec, now: RecordedSpec) -> None:
    """Raise RequestError if a setting that affects weights or rows has changed."""
    changed = [
        f"{name} was {saved.get(name)!r} and is now {now[name]!r}"
        for name in now
        if name not in _MAY_CHANGE and saved.get(name) != now[name]
    ]
    if changed:
        raise RequestError(
            f"cannot resume from {path} with other settings: {'; '.join(changed)}. "
            "Restore them in run.json, or start a new run."
        )


def _os_error(error: BaseException | None) -> OSError | None:
    """Return the OSError of a failed write, which torch follows up with a bare RuntimeError."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def folders_to_rewind(own: Path, run: Path, rank: int, world: int) -> list[Path]:
    """List the folders to rewind: a rank's own; for rank 0 also the run's and old ranks'."""
    if rank != 0:
        return [own]
    first_old = world if own != run else 0
    old = [each for each in rank_folders(run) if int(each.name) >= first_old]
    return [own, *([run] if own != run else []), *old]


def forget_rows_after(
    folder: Path, stages: list[Stage], position: Position, batches_per_step: int = 1
) -> None:
    """Drop the rows after a position, so that each step occurs once."""
    number_of: dict[tuple[str, int], int] = {
        (stage.split, stage.epoch): number for number, stage in enumerate(stages)
    }

    evaluation_split = next((stage.split for stage in stages if stage.split != "train"), "test")

    def is_done(split: str, epoch: str) -> bool:
        return number_of.get((split, int(epoch)), len(stages)) < position.stage

    def step_is_done(epoch: str, step: float) -> bool:
        under_way = number_of.get(("train", int(epoch))) == position.stage
        return is_done("train", epoch) or (under_way and step <= position.step)

    def record_is_done(row: dict[str, str]) -> bool:
        match int(row["type"]):
            case 0:
                return is_done("train", row["epoch"])
            case 1:
                return is_done(evaluation_split, row["epoch"])
            case 2:
                steps = -(-float(row["value1"]) // batches_per_step)
                return step_is_done(row["epoch"], steps)
        return True  # a download, which precedes all stages

    keep_rows(folder / schema.STEPS, lambda row: step_is_done(row["epoch"], int(row["step"])))
    keep_rows(folder / schema.EPOCHS, lambda row: is_done(row["split"], row["epoch"]))
    keep_rows(folder / schema.RECORDS, record_is_done)

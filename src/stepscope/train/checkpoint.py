"""Checkpoints: save and load the state of a training, and drop the rows written after it.

Order and augmentation of samples are stateless (`data.sample_order`). The file is replaced
atomically and loaded with `weights_only`, which executes no code.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from stepscope.errors import DISK_FULL_ERRNOS, DataError, RequestError, StepscopeError, disk_full
from stepscope.files import sync, sync_and_move
from stepscope.meter.clock import now_ns, seconds
from stepscope.meter.step_rows import EpochTiming
from stepscope.records import schema
from stepscope.records.csv_log import keep_rows
from stepscope.records.run_reader import rank_folders
from stepscope.records.table import read_table
from stepscope.records.types import RecordedSpec
from stepscope.train.epoch_plan import Position, Stage
from stepscope.train.recorder import TEST_EPOCH, TRAIN_EPOCH, Tally
from stepscope.train.training_setup import Job

# Settings that change neither a loss nor the meaning of a row: paths, loading, and the steps whose
# rows are marked as profiled.
_MAY_CHANGE = frozenset(
    {"name", "out", "data_dir", "source", "access", "endpoint_url", "memory_limit"}
    | {"workers", "prefetch", "persistent_workers", "pin_memory", "pipeline", "layers"}
    | {"counters", "processes"}
    | {"page_cache", "drop_epochs", "pipeline_delay_ms", "source_delay_ms"}
)


_DEPENDED_ON = (schema.STEPS, schema.EPOCHS, schema.RECORDS)


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


class CheckpointWriter:
    """Write the checkpoints of a run.

    The training writes to a file in memory, and a thread waits for the disk: for the rows that the
    checkpoint depends on, then for the checkpoint, which takes the place of the one before only
    then. `on_disk` is called with the position and how long the training had to wait.
    """

    def __init__(
        self,
        run: Callable[[], Path],  # its folder now: it may be renamed
        job: Job,
        on_disk: Callable[[Position, float], None],
    ) -> None:
        self._run = run
        self._job = job
        self._on_disk = on_disk
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None

    def save(self, progress: TrainingProgress) -> None:
        """Write a checkpoint of now. Waits for the one before if the disk has not finished it."""
        job, began_ns = self._job, now_ns()
        random_cuda = torch.cuda.get_rng_state_all() if job.device.type == "cuda" else []
        own = asdict(RankState(progress, torch.get_rng_state(), random_cuda))
        ranks = job.process_group.gather(own)  # a barrier: the rows of all ranks are written
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
        self.wait()
        file = self._run() / schema.CHECKPOINT
        with _removed_if_it_fails(file) as replacement, replacement.open("wb") as stream:
            torch.save(content, stream)
        waited_s = seconds(now_ns() - began_ns)
        self._written = self._thread.submit(self._put_on_disk, progress.position, waited_s)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raise what went wrong."""
        if self._written is not None:
            self._written.result()

    def complete(self) -> None:
        """Wait for the last checkpoint of a completed run, which needs no earlier one."""
        self.wait()
        if self._job.process_group.rank == 0:
            (self._run() / schema.EARLIER_CHECKPOINT).unlink(missing_ok=True)

    def close(self) -> None:
        """Wait for the last checkpoint, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _put_on_disk(self, position: Position, waited_s: float) -> None:
        run = self._run()
        for folder in (run, *rank_folders(run)):
            for name in _DEPENDED_ON:
                sync(folder / name)
        file, earlier = run / schema.CHECKPOINT, run / schema.EARLIER_CHECKPOINT
        with _removed_if_it_fails(file) as replacement:
            sync(replacement)
            earlier.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # none yet, or a file system without links
                os.link(file, earlier)
            sync_and_move(replacement, file)
        self._on_disk(position, waited_s)


@contextlib.contextmanager
def _removed_if_it_fails(file: Path) -> Iterator[Path]:
    """Yield the path of a temporary file; remove it if it cannot be written."""
    replacement = file.with_suffix(".tmp")
    try:
        yield replacement
    except (OSError, RuntimeError) as error:
        replacement.unlink(missing_ok=True)
        failed = _os_error(error)
        if failed is not None and failed.errno in DISK_FULL_ERRNOS:
            raise disk_full(failed, str(file)) from error
        raise


def load_newest(
    run: Path, folders: Sequence[Path], job: Job, complain: Callable[[str], None]
) -> TrainingProgress:
    """Load the newest checkpoint of a run whose rows are all there, or start at the beginning.

    `folders` have the rows of this process. A power cut can leave a checkpoint without its rows on
    a disk that reports data as written before it is. Why one is left out goes to `complain`.
    """
    group = job.process_group

    def is_recorded(progress: TrainingProgress) -> bool:
        own = group.rank >= progress.processes or has_rows(
            folders, job.stages, progress.position, from_start=group.rank == 0
        )
        return all(group.gather(own))

    files = [run / name for name in (schema.CHECKPOINT, schema.EARLIER_CHECKPOINT)]
    found, reasons, progress = [file for file in files if file.exists()], [], None
    for file in found:
        try:
            progress = load(file, job, is_recorded)
        except DataError as error:
            if file == found[-1]:
                raise
            reasons.append(str(error).partition(". ")[0])
        else:
            if progress is not None:
                break
            reasons.append(f"rows from before {file.name} are missing, as after a power cut")
    if reasons:
        complain(reasons[0])
    return progress or TrainingProgress(processes=group.world_size)


def load(
    path: Path, job: Job, is_recorded: Callable[[TrainingProgress], bool]
) -> TrainingProgress | None:
    """Load a checkpoint into a job that was built from the same spec; None without its rows."""
    try:
        content = torch.load(path, map_location=job.device, weights_only=True)
        _check_same_training(path, content["spec"], job.spec.model_dump(mode="json"))
        ranks = [RankState.load(each) for each in (content, *content.get("others", []))]
        own = part_of_rank(ranks, job.process_group.rank, job.process_group.world_size)
        progress = replace(own.progress, processes=len(ranks))
        if not is_recorded(progress):
            return None
        job.model.load_state_dict(content["model"])
        job.optimizer.load_state_dict(content["optimizer"])
        if job.schedule:
            job.schedule.load_state_dict(content["schedule"])
        if job.scaler:
            job.scaler.load_state_dict(content["scaler"])
        if own.random is not None:
            torch.set_rng_state(own.random.cpu())
        if own.random_cuda:
            known = own.random_cuda[: torch.cuda.device_count()]  # saved on a machine with more
            torch.cuda.set_rng_state_all([state.cpu() for state in known])
        return progress
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


def has_rows(
    folders: Sequence[Path], stages: list[Stage], position: Position, *, from_start: bool
) -> bool:
    """Return whether the tables have every row up to a position.

    A rank that is not there `from_start` has every row since its first.
    """
    done = stages[: position.stage]
    steps = [replace(stage, steps=position.step) for stage in stages[position.stage :][:1]]
    first: dict[int, int] = {}
    total = 0
    for stage in (*done, *steps):
        if stage.split == "train":
            first[stage.epoch] = total
            total += stage.steps
    seen, ended = bytearray(total), set[tuple[object, int]]()
    for folder in folders:
        table = read_table(folder / schema.STEPS)
        for epoch, step in zip(table["epoch"], table["step"], strict=True):
            if epoch in first and 0 < step <= total - first[epoch]:
                seen[first[epoch] + step - 1] = 1
        table = read_table(folder / schema.EPOCHS)
        ended |= set(zip(table["split"], table["epoch"], strict=True))
        table = read_table(folder / schema.RECORDS)
        ended |= set(zip(table["type"], table["epoch"], strict=True))
    if not from_start:
        return 0 not in seen.lstrip(b"\0") and seen[-1:] != b"\0"
    wanted: set[tuple[object, int]] = set()
    for stage in done:
        kind = TRAIN_EPOCH if stage.split == "train" else TEST_EPOCH
        wanted |= {(stage.split, stage.epoch), (kind, stage.epoch)}
    return 0 not in seen and wanted <= ended


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

"""Going back to a checkpoint: rows of what will be done again leave the files."""

from __future__ import annotations

from pathlib import Path

from stepscope.records import schema
from stepscope.records.csvlog import keep_rows
from stepscope.train.stages import Position, Stage


def folders_to_rewind(own: Path, run: Path, rank: int, world: int) -> list[Path]:
    """List the folders whose tables a process takes back: its own, and for rank 0 nobody's.

    Those are the run's own, where it is not the process's, and those of ranks that were there
    when the checkpoint was written and are no more.
    """
    if rank != 0:
        return [own]
    first_gone = world if own != run else 0
    ranks = (each for each in (run / schema.RANKS).glob("*") if each.name.isdecimal())
    gone = [each for each in ranks if int(each.name) >= first_gone]
    return [own, *([run] if own != run else []), *sorted(gone)]


def forget_rows_after(
    folder: Path, stages: list[Stage], position: Position, batches_per_step: int = 1
) -> None:
    """Drop the rows after a position, so that each step stands in the files once."""
    number_of: dict[tuple[str, int], int] = {
        (stage.split, stage.epoch): number for number, stage in enumerate(stages)
    }

    judged_on = next((stage.split for stage in stages if stage.split != "train"), "test")

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
                return is_done(judged_on, row["epoch"])
            case 2:
                steps = -(-float(row["value1"]) // batches_per_step)
                return step_is_done(row["epoch"], steps)
        return True  # a download, which comes before all stages

    keep_rows(folder / schema.STEPS, lambda row: step_is_done(row["epoch"], int(row["step"])))
    keep_rows(folder / schema.EPOCHS, lambda row: is_done(row["split"], row["epoch"]))
    keep_rows(folder / schema.RECORDS, record_is_done)

"""Several processes of one training, as torchrun starts them: each rank its folder, one run.

Every rank is supervised by a parent of its own, into `ranks/<n>/`, a run folder like any other.
Rank 0 makes the run's folder and tells the others where it is, through a file beside it; when all
have ended it puts the run together: its own times, and the samples of all.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import RequestError
from stepscope.records import reader, schema
from stepscope.records.csvlog import number
from stepscope.records.folder import RunFolder

_WAIT_FOR_FOLDER_S = 120.0
_WAIT_FOR_OTHERS_S = 60.0


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is, and what the training as a whole is called."""

    rank: int
    world: int
    meeting: str

    def find_run(self, out: Path, make: Callable[[], Path]) -> Path:
        """Return the run's folder: made by rank 0, waited for by the others."""
        note = out / f".meeting-{self.meeting}"
        if self.rank == 0:
            note.unlink(missing_ok=True)
            made = make()
            beside = note.with_suffix(".new")
            beside.write_text(made.name, encoding="utf-8")
            beside.replace(note)
            return made
        until = time.monotonic() + _WAIT_FOR_FOLDER_S
        began = time.time()
        while time.monotonic() < until:
            # A note that was there before this process began is of an earlier training.
            if note.is_file() and note.stat().st_mtime >= began - _WAIT_FOR_FOLDER_S:
                run = out / note.read_text(encoding="utf-8")
                if (run / schema.RUN).is_file():
                    return run
            time.sleep(0.05)
        raise RequestError(
            f"rank {self.rank} found no run folder of rank 0 in {out} within "
            f"{_WAIT_FOR_FOLDER_S:.0f} s. All ranks need the same --out, on a shared file system."
        )

    def forget(self, out: Path) -> None:
        """Take the note away."""
        (out / f".meeting-{self.meeting}").unlink(missing_ok=True)


def find_place() -> Place | None:
    """Return this process's place as torchrun tells it; None when it is alone."""
    told = os.environ
    try:
        rank, world = int(told.get("RANK", "")), int(told.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    if world < 2:
        return None
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    identity = "/".join(told.get(name, "") for name in names)
    return Place(rank, world, hashlib.sha256(identity.encode()).hexdigest()[:12])


def put_together(top: RunFolder, world: int) -> list[dict[str, Any]]:
    """Write the run's own tables from those of its ranks; return what each has to say."""
    ranks = [top.path / schema.RANKS / str(rank) for rank in range(world)]
    _wait_for(ranks[1:])
    runs = [reader.load_run(path) for path in ranks if (path / schema.RUN).is_file()]
    first = ranks[0]
    samples: defaultdict[tuple[int, int], int] = defaultdict(int)
    for run in runs:
        for row in run.steps.rows():
            samples[row["epoch"], row["step"]] += row["samples"] or 0
    _rewrite(first, top, schema.STEPS, lambda row: _all_samples(row, samples))
    by_epoch: defaultdict[tuple[str, str], int] = defaultdict(int)
    for run in runs:
        for row in run.epochs.rows():
            by_epoch[str(row["epoch"]), row["split"]] += row["samples"] or 0
    _rewrite(first, top, schema.EPOCHS, lambda row: _all_samples_per_s(row, by_epoch))
    _rewrite(first, top, schema.TELEMETRY, lambda row: row)
    return [run.info for run in runs]


def _wait_for(ranks: list[Path]) -> None:
    """Wait until all ranks have closed their folders, or have had time enough to."""
    until = time.monotonic() + _WAIT_FOR_OTHERS_S
    while time.monotonic() < until:
        known = [path for path in ranks if (path / schema.RUN).is_file()]
        open_ones = [path for path in known if reader.load_run(path).status == schema.RUNNING]
        if len(known) == len(ranks) and not open_ones:
            return
        time.sleep(0.1)


def _rewrite(
    source: Path, top: RunFolder, name: str, change: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    header, *lines = (source / name).read_text(encoding="utf-8").splitlines()
    columns = header.split(",")
    rows = [dict(zip(columns, line.split(","), strict=False)) for line in lines]
    whole = [change(row) for row in rows if len(row) == len(columns)]
    text = "\n".join([header, *(",".join(row.values()) for row in whole)]) + "\n"
    (top.path / name).write_text(text, encoding="utf-8")


def _all_samples(row: dict[str, str], samples: dict[tuple[int, int], int]) -> dict[str, str]:
    return {**row, "samples": str(samples[int(row["epoch"]), int(row["step"])])}


def _all_samples_per_s(row: dict[str, str], samples: dict[tuple[str, str], int]) -> dict[str, str]:
    total = samples[row["epoch"], row["split"]]
    total_s = float(row["total_s"] or 0)
    rate = number(total / total_s) if total_s else ""
    return {**row, "samples": str(total), "samples_per_s": rate}

"""Several processes of one training, as torchrun starts them: each rank its folder, one run.

Every rank is supervised by a parent of its own, into `ranks/<n>/`, a run folder like any other.
Under somebody's own torchrun, rank 0 makes the run's folder and tells the others where it is,
through a file beside it. How the run is put together in the end is in `experiments.together`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import RequestError
from stepscope.records import schema

_WAIT_FOR_FOLDER_S = 120.0


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is, and what the training as a whole is called.

    `restarts` counts how often the launcher has started all of them again.
    """

    rank: int
    world: int
    meeting: str
    restarts: int = 0
    max_restarts: int = 0

    def find_run(self, out: Path, make: Callable[[], Path], *, goes_on: bool = False) -> Path:
        """Return the run's folder: made by rank 0, waited for by the others.

        One that `goes_on` after a restart is found again; otherwise each start has its own.
        """
        note = self._note(out, goes_on)
        again = goes_on and self.restarts > 0
        if self.rank == 0:
            if again and (run := _read(note, out)) is not None:
                return run
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
            fresh = note.is_file() and note.stat().st_mtime >= began - _WAIT_FOR_FOLDER_S
            if (fresh or again) and (run := _read(note, out)) is not None:
                return run
            time.sleep(0.05)
        raise RequestError(
            f"rank {self.rank} found no run folder of rank 0 in {out} within "
            f"{_WAIT_FOR_FOLDER_S:.0f} s. All ranks need the same --out, on a shared file system."
        )

    def forget(self, out: Path, *, goes_on: bool = False) -> None:
        """Take the note away."""
        self._note(out, goes_on).unlink(missing_ok=True)

    def _note(self, out: Path, goes_on: bool) -> Path:
        return out / f".meeting-{self.meeting}{'' if goes_on else f'-{self.restarts}'}"


def find_place() -> Place | None:
    """Return this process's place as torchrun tells it; None when it is alone."""
    told = os.environ
    try:
        rank, world = int(told.get("RANK", "")), int(told.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    if world < 2:
        return None
    identity = told.get("TORCHELASTIC_RUN_ID", "none")
    if identity == "none":  # nobody named it; a port may change when all are started again
        identity = "/".join(told.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    restarts = int(told.get("TORCHELASTIC_RESTART_COUNT", "0"))
    meeting = hashlib.sha256(identity.encode()).hexdigest()[:12]
    most = int(told.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    return Place(rank, world, meeting, restarts, most)


def _read(note: Path, out: Path) -> Path | None:
    if not note.is_file():
        return None
    run = out / note.read_text(encoding="utf-8")
    return run if (run / schema.RUN).is_file() else None

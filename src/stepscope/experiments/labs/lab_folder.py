"""The folder of a lab: its finding in `lab.json`, its plots, and the sweep that it made."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import Interrupted
from stepscope.records import schema
from stepscope.records.run_folder import RecordFolder, make_folder, point_latest


class LabFolder(RecordFolder[dict[str, Any]]):
    """A lab's folder on disk, open for writing."""

    INFO = "lab.json"


@contextlib.contextmanager
def lab_folder(out: Path, name: str, about: Mapping[str, Any]) -> Iterator[LabFolder]:
    """Make `out/<time>-lab-<name>/`, and point `out/latest` to it; an error is noted in it."""

    def fill(building: Path, identity: str) -> None:
        started = {"id": identity, "kind": "lab", "lab": name, "started_unix_s": time.time()}
        now = {"status": schema.RUNNING, "reason": None}
        LabFolder(building).write_info({"schema": schema.SCHEMA, **started, **now, **about})

    wanted = f"{time.strftime('%Y%m%d-%H%M%S')}-lab-{name}"
    made = LabFolder(make_folder(out, wanted, fill, what="lab"))
    point_latest(out, made.path.name)
    with _noting_errors(made):
        yield made


@contextlib.contextmanager
def lab_folder_again(path: Path) -> Iterator[LabFolder]:
    """Open the folder of a lab that was stopped; an error is noted in it."""
    made = LabFolder(path)
    with made.held():
        made.update_info(status=schema.RUNNING, reason=None)
        with _noting_errors(made):
            yield made


@contextlib.contextmanager
def _noting_errors(made: LabFolder) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        made.close(status=schema.INTERRUPTED, reason="interrupted")
        again = f"stepscope lab --resume {shlex.quote(str(made.path))}"
        raise Interrupted(f"interrupted; go on with: {again}") from error
    except BaseException as error:
        made.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
        raise

"""Start runs of several processes with torchrun, and follow them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import polling
import psutil
from stepscope_command import ENVIRONMENT

from stepscope.errors import StepscopeError
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
T = TypeVar("T")


def start_torchrun(
    folder: Path,
    *arguments: object,
    options: tuple[object, ...] = ("--standalone",),
    script: str | None = None,
) -> subprocess.Popen[str]:
    """Start `torchrun … -m stepscope ARGUMENTS`, or a shell script, as two processes."""
    two = ("--nproc-per-node", 2) if "--nproc-per-node" not in options else ()
    what: tuple[object, ...] = ("-m", "stepscope", *arguments)
    if script is not None:
        what = ("--no-python", "sh", "-c", script)
    return subprocess.Popen(
        [*map(str, (*TORCHRUN, *options, *two, *what))],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "PATH": f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"},
    )


def the_run(folder: Path) -> Run:
    """Return the one run that there is in `runs/`."""
    made = (each for each in (folder / "runs").iterdir() if each.is_dir())
    [found] = [each for each in made if not each.is_symlink()]
    return load_run(found)


def wait_until(happened: Callable[[], T]) -> T:
    """Wait for something that happens soon; its value is returned."""

    def so_far() -> T | None:
        with contextlib.suppress(StepscopeError, OSError, ValueError, psutil.Error):
            return happened()
        return None  # not there yet

    found = polling.wait_until(so_far, every_s=0.05)
    assert found is not None
    return found


def training_of_rank(folder: Path, rank: int, after_steps: int = 1) -> psutil.Process:
    """Return the process that trains as a rank, once it has written so many steps."""

    def found() -> psutil.Process | None:
        own = load_run(the_run(folder).path / schema.RANKS / str(rank))
        if len(own.steps) < after_steps:
            return None
        children = psutil.Process(own.info["process"]).children()
        return children[0] if children else None

    process = wait_until(found)
    assert isinstance(process, psutil.Process)
    return process


def ranks_of(run: Run) -> list[Run]:
    """Return the ranks of a run, in order."""
    return [load_run(run.path / schema.RANKS / str(rank)) for rank in (0, 1)]

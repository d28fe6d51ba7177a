"""Run the stepscope command in the folder of a test.

It runs in the test's process, and what it starts is forked from a process that has torch imported:
that saves seconds each time. Where starting Python is what is tested there is `as_process`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TextIO
from unittest import mock

import pytest
from checked_schemas import check_answer
from warm_start import cold_start

from stepscope.cli.main import main
from stepscope.records.run_reader import Run


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        parsed = json.loads(self.out)
        assert isinstance(parsed, dict)
        return parsed

    def is_refused(self, code: int, *words: str) -> bool:
        """Say whether it ended with this code, nothing on standard output and these words."""
        assert "Traceback" not in self.err + self.out
        assert all(word in self.err for word in words), self.err
        return self.code == code and self.out == ""


def closes(run: Run, within: float = 0.02) -> bool:
    """Say whether steps account for the time of their epochs, but for a share or a few ms of it.

    Between the two clocks that are compared another process may be served: a tiny run has no time
    in which that would not show.
    """
    parts = zip(run.epochs["split"], run.epochs["total_s"], strict=True)
    total_s = sum(took_s for split, took_s in parts if split == "train")
    return abs(run.summary["accounted_share"] - 1) * total_s <= max(within * total_s, 0.005)


def steps_on_disk(folder: Path) -> int:
    """Return how many steps the newest run in a folder has recorded."""
    file = folder / "runs" / "latest" / "steps.csv"
    return file.read_text().count("\n") - 1 if file.exists() else 0


class Stepscope:
    """Call stepscope in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *args: object) -> list[str]:
        return [sys.executable, "-m", "stepscope", *map(str, args)]

    def start(self, *args: object, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*args),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            **options,
        )

    def as_process(self, *args: object, **options: Any) -> Answer:
        """Call it as a process of its own, where that is what is tested."""
        done = subprocess.run(
            self.command(*args),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            env={**ENVIRONMENT, **options.pop("env", {})},
            **options,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def through_a_shell(self, line: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a line of bash in which `stepscope` is the command."""
        command = " ".join(self.command())
        return subprocess.run(
            ["bash", "-c", f'set -o pipefail; stepscope() {{ {command} "$@"; }}; {line}'],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**ENVIRONMENT, **env},
        )

    def interrupted_after(self, beginning: str, *args: object) -> Answer:
        """Press Ctrl-C once a line that begins so has come on standard error."""
        process = self.start(*args)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(beginning):
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=120)
        return Answer(process.returncode, out, err)

    def succeed(self, *args: object, **options: Any) -> Answer:
        """Call it, and check that it exits with 0."""
        answer = self(*args, **options)
        assert answer.code == 0, answer.err
        return answer

    def __call__(
        self, *args: object, env: Mapping[str, str] | None = None, warm: bool = True
    ) -> Answer:
        """Call it in the test's own process; trainings and scripts are forked processes.

        Not `warm`, they are started as ever.
        """
        with (
            TemporaryFile(buffering=0) as out,
            TemporaryFile(buffering=0) as err,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.chdir(self.folder)
            with (
                mock.patch.dict(os.environ, {**ENVIRONMENT, **(env or {})}),
                nullcontext() if warm else cold_start(),
                _into(out, 1, redirect_stdout),
                _into(err, 2, redirect_stderr),
                pytest.raises(SystemExit) as ended,
            ):
                main([*map(str, args)])
            assert isinstance(ended.value.code, int)
            answer = Answer(ended.value.code, _text_of(out), _text_of(err))
        if "--json" in args and answer.out:
            check_answer([*map(str, args)], answer.json, self.folder)
        return answer


@contextmanager
def _into(
    file: IO[bytes], descriptor: int, redirect: Callable[[TextIO], AbstractContextManager[TextIO]]
) -> Iterator[None]:
    """Let this process and its children write to a file what is for a standard stream."""
    kept = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        with (
            os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as stream,
            redirect(stream),
        ):
            yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8")


# Two test processes with two threads each would wait for one another on two cores; and of the
# hundreds that are started, each finds compiled what another has imported. The cache is one of the
# tests' own that outlives a session: what takes seconds to make is made once in a checkout.
FRUGAL = {
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "XDG_CACHE_HOME": str(Path(__file__).resolve().parents[2] / ".pytest_cache" / "user"),
}
ENVIRONMENT = {**os.environ, **FRUGAL, "COLUMNS": "100"}

# A training that takes a second: LeNet on a few built-in images.
TINY = ("--samples", 320, "--batch-size", 32, "--epochs", 2, "--out", "runs")

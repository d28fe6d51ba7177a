"""The command as a person calls it: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


class Stepscope:
    """Call stepscope in a folder of the test's own, as a process of its own."""

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

    def __call__(self, *args: object, **options: Any) -> Answer:
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


# Two test processes with two threads each would wait for one another on two cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ENVIRONMENT = {**os.environ, **ONE_THREAD, "COLUMNS": "100"}

# A training that takes a second: LeNet on a few built-in images.
TINY = ("--samples", 320, "--batch-size", 32, "--epochs", 2, "--out", "runs")

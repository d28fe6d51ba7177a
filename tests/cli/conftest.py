"""What tests of commands share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from local_ray_cluster import Cluster
from stepscope_command import ENVIRONMENT, Stepscope
from warm_command import WarmProcess


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A Ray cluster that has no nodes yet."""
    with closing(Cluster()) as cluster:
        yield cluster


class WarmStepscope(Stepscope):
    """Start commands that need not import torch."""

    def start(self, *args: object, **options: Any) -> subprocess.Popen[str]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return WarmProcess(
            self.command(*args), cwd=self.folder, text=True, env=ENVIRONMENT, **streams
        )


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    return WarmStepscope(tmp_path)

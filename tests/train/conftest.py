"""A whole training in this process, without the supervising parent."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stepscope.errors import Interrupted
from stepscope.meter.clock import now_ns
from stepscope.processes.training_process import ProcessOptions
from stepscope.processes.training_session import run_session
from stepscope.records import run_folder
from stepscope.records.run_reader import Run, load_run
from stepscope.records.types import RunMessage, TrainingResult
from stepscope.settings.load_settings import validate
from stepscope.train.stop_request import StopRequest

SMALL = {"samples": 192, "batch_size": 32, "epochs": 2, "threads": 1}


class StopAfter(StopRequest):
    """A request to stop that comes once the loop has looked for one so many times."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    @property
    def requested(self) -> bool:  # type: ignore[override]
        self._looks -= 1
        return self._looks < 0


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


Train = Callable[..., Run]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train with some settings, stop where asked to, and return the run as recorded."""
    return functools.partial(_train, tmp_path / "runs")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Return a run that a session makes once for the same settings: to look at, not to change."""
    out = tmp_path_factory.mktemp("trained")
    return functools.cache(functools.partial(_train, out))


def _train(
    out: Path,
    where: Path | None = None,
    looks_before_stop: int = 10**9,
    kind: str = "run",
    forecast: bool = True,
    result: TrainingResult | None = None,
    messages: list[RunMessage] | None = None,
    **settings: Any,
) -> Run:
    if where is None:
        spec = validate({**SMALL, **settings, "out": str(out)})
        where = run_folder.create(out, spec.run_name, kind, spec.model_dump(mode="json")).path
    reported, error = run_session(
        run_folder.RunFolder(where),
        now_ns(),
        StopAfter(looks_before_stop),
        (lambda message: None) if messages is None else messages.append,
        ProcessOptions(forecast=forecast),
    )
    if result is not None:
        result.update(reported)
    if error is not None and not isinstance(error, Interrupted):
        raise error
    assert error is None or looks_before_stop < 10**9
    return load_run(where)

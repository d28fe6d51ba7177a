"""Fixtures for all tests: the command, and real data if it is there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from stepscope_command import FRUGAL, TINY, Stepscope
from warm_start import cold_start, warm_start

# Also for what a test computes in its own process, or starts without `Stepscope`: torch looks at
# it when it is imported, which is later than here.
os.environ.update(FRUGAL)

# The first text of a fresh clone takes seconds to draw, while hypothesis looks through Unicode.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Under nohup what tests start would ignore that its terminal is gone, and in the background of a
# script that somebody presses Ctrl-C.
for number, usual in {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# The files with the longest tests begin, so that no worker is left alone with one at the end.
LONGEST_FIRST = (
    "test_docs_commands.py",
    "test_scripts.py",
    "test_sweep_command.py",
    "test_workers_command.py",
    "test_store_runs.py",
    "test_max_batch_script.py",
    "test_max_batch_command.py",
    "test_stop_and_resume.py",
    "test_surroundings.py",
    "test_lab_sheets.py",
    "test_distributed_runs.py",
    "test_energy_run.py",
    "test_search_command.py",
    "test_scale_command.py",
    "test_runner_contract.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; `make test` keeps this order (`--no-loadscope-reorder`)."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    return Stepscope(tmp_path)


@pytest.fixture(autouse=True, scope="session")
def warm() -> Iterator[None]:
    with warm_start():
        yield


@pytest.fixture(scope="module")
def cold() -> Iterator[None]:
    """Start trainings and scripts as a user's command does."""
    with cold_start():
        yield


@pytest.fixture
def tiny() -> tuple[object, ...]:
    return TINY


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what stepscope keeps of a machine in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data, where it lies beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "cifar-10-batches-bin").is_dir():
        pytest.skip("no real CIFAR-10 beside the repository (../shared/data)")
    return folder

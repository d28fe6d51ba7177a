"""What most tests stand on: the command as a person calls it, and real data where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest
from as_a_person import TINY, Stepscope


@pytest.fixture
def stepscope(tmp_path: Path) -> Stepscope:
    return Stepscope(tmp_path)


@pytest.fixture
def tiny() -> tuple[object, ...]:
    return TINY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data, where it lies beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "cifar-10-batches-bin").is_dir():
        pytest.skip("no real CIFAR-10 beside the repository (../shared/data)")
    return folder

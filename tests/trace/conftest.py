"""What tests of measuring share."""

from __future__ import annotations

import pytest
from simulated_loop import Loop


@pytest.fixture
def loop() -> Loop:
    return Loop()

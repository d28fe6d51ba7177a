"""What this machine is, what it can measure, and what would make a measurement unfair.

Each module looks at one part and returns its checks; what it reads is in `hardware/`.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.doctor.board_checks import check_board
from stepscope.doctor.check import Check
from stepscope.doctor.cpu_checks import check_processor
from stepscope.doctor.instrument_checks import check_instruments
from stepscope.doctor.memory_checks import check_memory
from stepscope.doctor.storage_checks import check_storage

__all__ = ["Check", "examine"]


def run_checks(root: Path, data_dir: Path) -> list[Check]:
    """Look at everything, in some seconds; nothing is changed."""
    return [
        *check_board(root),
        *check_processor(root),
        *check_memory(root),
        *check_storage(root, data_dir),
        *check_instruments(root),
    ]

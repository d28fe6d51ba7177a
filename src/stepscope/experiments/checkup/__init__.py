"""What this machine is, what it can measure, and what would make a measurement unfair.

Each module looks at one part and returns its checks; what it reads is in `hardware/`.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.experiments.checkup.boards import check_board
from stepscope.experiments.checkup.check import Check
from stepscope.experiments.checkup.instruments import check_instruments
from stepscope.experiments.checkup.memory import check_memory
from stepscope.experiments.checkup.processor import check_processor
from stepscope.experiments.checkup.storage import check_storage

__all__ = ["Check", "examine"]


def examine(root: Path, data_dir: Path) -> list[Check]:
    """Look at everything, in some seconds; nothing is changed."""
    return [
        *check_board(root),
        *check_processor(root),
        *check_memory(root),
        *check_storage(root, data_dir),
        *check_instruments(root),
    ]

"""Checks of the machine: what it is, what it can measure, and what distorts a measurement."""

from __future__ import annotations

from pathlib import Path

from stepscope.doctor.board_checks import check_board
from stepscope.doctor.cpu_checks import check_processor
from stepscope.doctor.instrument_checks import check_instruments
from stepscope.doctor.memory_checks import check_memory
from stepscope.doctor.storage_checks import check_storage
from stepscope.records.types import MachineCheck


def run_checks(root: Path, data_dir: Path) -> list[MachineCheck]:
    """Return all checks, in a few seconds, without changing anything."""
    return [
        *check_board(root),
        *check_processor(root),
        *check_memory(root),
        *check_storage(root, data_dir),
        *check_instruments(root),
    ]

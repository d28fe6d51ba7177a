"""Swap areas: disks, files, and zram, which is compressed memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.hardware.procfs import PseudoFileReading, read_text


@dataclass(frozen=True)
class SwapArea:
    """One swap area."""

    name: str
    size_bytes: int
    used_bytes: int

    @property
    def is_zram(self) -> bool:
        """Whether it is compressed memory instead of a disk."""
        return Path(self.name).name.startswith("zram")


def swap_areas(root: Path) -> PseudoFileReading[list[SwapArea]]:
    """List the areas in `/proc/swaps`; invalid lines are skipped."""
    said = read_text(root / "proc/swaps")
    if said.value is None:
        return PseudoFileReading(None, said.reason)
    found = []
    for line in said.value.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 4 and fields[2].isdecimal() and fields[3].isdecimal():
            found.append(SwapArea(fields[0], int(fields[2]) * 1024, int(fields[3]) * 1024))
    return PseudoFileReading(found)

"""Cold files before an epoch, so that reading them is felt as it would be the first time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.hardware import page_cache


def make_cold(files: Sequence[Path]) -> dict[str, Any]:
    """Take files out of the page cache; return how, how much, and the share that was cold then."""
    return asdict(page_cache.make_cold(files))

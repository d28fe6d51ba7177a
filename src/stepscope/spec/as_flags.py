"""Settings as a person would type them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def as_flags(settings: Mapping[str, Any]) -> str:
    """Write settings as flags, quoted for a shell: `--batch-size 64 --checkpoint-activations`."""
    return " ".join(_flag(name.replace("_", "-"), value) for name, value in settings.items())


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return f"--{name} {shlex.quote(str(value))}"

"""Say what to change where a run does not fit: settings that were forecast to take less."""

from __future__ import annotations

from typing import Any

from stepscope.spec.as_flags import as_flags
from stepscope.units import format_bytes


def what_would_help(forecast: dict[str, Any] | None) -> str:
    """Name the settings that were forecast to take less, each with its forecast."""
    known = (forecast or {}).get("remedies")
    if not known:
        return "Try a smaller --batch-size or fewer --workers."
    if not any(remedy["fits"] for remedy in known):
        return (
            "None of these would fit either, by forecast: "
            + ", ".join(map(_remedy, known))
            + f". {_more_room(known[0]['pool'])} is needed, or a smaller network."
        )
    enough = ", ".join(_remedy(remedy) for remedy in known if remedy["fits"])
    too_little = ", ".join(_remedy(remedy) for remedy in known if not remedy["fits"])
    more = f"; not enough by itself: {too_little}" if too_little else ""
    return f"What would help, by forecast: {enough}{more}."


def _remedy(remedy: dict[str, Any]) -> str:
    return f"{as_flags(remedy['settings'])} ({format_bytes(remedy['pool_bytes'])})"


def _more_room(pool: str) -> str:
    return "A device with more memory" if pool == "device" else "A larger --memory-limit"

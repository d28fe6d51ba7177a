"""On what did a run take place? Its environment as one list, the machine's state included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEMPERATURES = ("temperature_start_c", "temperature_end_c")
# Of the conditions: what is measured instead of set, and what explains the rest.
_ASIDE = ("temperature_c", "absent", "changed")


def flat_environment(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment of a run's record, with the conditions in it beside the rest.

    A condition that changed during the run is `before -> after`.
    """
    environment = dict(info.get("environment") or {})
    conditions = environment.pop("conditions", None)
    if not isinstance(conditions, Mapping):
        return environment
    state = {name: value for name, value in conditions.items() if name not in _ASIDE}
    for name, moved in (conditions.get("changed") or {}).items():
        state[name] = f"{moved['start']} -> {moved['end']}"
    warmth = conditions.get("temperature_c") or {}
    ends = (warmth.get("start"), warmth.get("end"))
    return {**environment, **state, **dict(zip(TEMPERATURES, ends, strict=True))}

"""In what do two sides differ? What was asked of them, and the machines that they ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.environment import TEMPERATURES, flat_environment
from stepscope.analyze.setting_names import as_text
from stepscope.analyze.sides import Side, in_rounds

# Where a run lies, and what was required of the machine, changes nothing of it.
_LABELS = frozenset({"name", "out", "require"})
_OF_THE_MOMENT = frozenset({"memory_available_bytes", "swap_used_bytes", *TEMPERATURES})
_BY_DESIGN = _LABELS | {"seed"}  # runs of one side may differ in it

Differences = dict[str, dict[str, Any]]


def changed_settings(baseline: Side, other: Side) -> Differences:
    """Return the settings that the sides do not share: of each, its values on either side.

    Of two settings of one sweep that is what the sweep varied.
    """
    if in_rounds(baseline, other):
        return _differences([baseline.values or {}], [other.values or {}], without=frozenset())
    return _differences(_settings(baseline), _settings(other), without=_LABELS)


def environment_differences(baseline: Side, other: Side) -> Differences:
    """Return what differs of the machines, other than by what was asked for."""
    asked = changed_settings(baseline, other)
    both = (_environments(baseline), _environments(other))
    return _differences(*both, without=_OF_THE_MOMENT | asked.keys())


def mixtures_in(side: Side) -> list[str]:
    """Say in what the runs of one side differ among themselves."""
    sentences = []
    for what, records, without in (
        ("were asked for with different", _settings(side), _BY_DESIGN),
        ("ran on different", _environments(side), _OF_THE_MOMENT),
    ):
        mixed = [key for key in _keys(records) if len(_values(records, key)) > 1]
        named = ", ".join(key for key in mixed if key not in without)
        if named:
            sentences.append(f"its runs {what} {named}")
    return sentences


def as_sentence(differences: Differences) -> str:
    """Write differences on a line: `workers 0 -> 2, seed 0 -> 1`."""
    return ", ".join(
        f"{key} {as_text(values['baseline'])} -> {as_text(values['other'])}"
        for key, values in differences.items()
    )


def _settings(side: Side) -> list[dict[str, Any]]:
    specs = [each.run.spec if each.run else {} for each in side.runs]
    return [{**spec, **(side.values or {})} for spec in specs]


def _environments(side: Side) -> list[dict[str, Any]]:
    return [flat_environment(each.run.info) for each in side.runs if each.run]


def _differences(
    baseline: Sequence[Mapping[str, Any]],
    other: Sequence[Mapping[str, Any]],
    without: frozenset[str],
) -> Differences:
    if not baseline or not other:
        return {}  # nothing is known of a side: that is no difference
    found = {}
    for key in _keys([*baseline, *other]):
        ours, theirs = _values(baseline, key), _values(other, key)
        if key not in without and ours != theirs:
            found[key] = {"baseline": _unwrapped(ours), "other": _unwrapped(theirs)}
    return found


def _keys(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for record in records for key in record))


def _values(records: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """List the distinct values, sorted, so that the order of runs makes no difference."""
    found: list[Any] = []
    for record in records:
        if record.get(key) not in found:
            found.append(record.get(key))
    return sorted(found, key=str)


def _unwrapped(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values

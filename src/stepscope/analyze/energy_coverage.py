"""What a total of joules has in it, and what it leaves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stepscope.analyze.energy_curve import Stretch
from stepscope.records.energy import EVERYTHING

_LEAST_STRETCH = 0.01  # of the time, to be worth a word
# How domains are called, with a number where there are several: `battery 2`, `package-1`.
_WHOLE_MACHINE = ("battery", "machine")
_GPUS = ("gpu", "apu")
_PROCESSORS = ("package", "apu")
_OF_A_MODULE = "what is not behind the module's input: parts of the carrier board, the power supply"
_OF_PSYS = "what the maker did not wire to psys; a GPU may be in it, and is not added"
_OF_PARTS = "the rest of the machine: storage, network, fans, losses of the power supply"


def left_out(
    covers: Sequence[str], domains: Collection[str], contains: Mapping[str, Collection[str]]
) -> list[str]:
    """Say in words what a total of domains does not have in it.

    `domains` are all that were read, `contains` what those contain that may be added up.
    """
    said = [f"{name}: what it feeds is not known" for name in domains if name not in contains]
    everything = [name for name in covers if EVERYTHING in contains[name]]
    if not covers or any(name.startswith(_WHOLE_MACHINE) for name in everything):
        return said
    if "psys" in everything:
        return [*said, _OF_PSYS]
    if everything:
        return [*said, _OF_A_MODULE]
    if not any(name.lower().startswith(_GPUS) for name in covers):
        said.append("a GPU, where there is one")
    of_processor = any(name.startswith(_PROCESSORS) for name in covers)
    if of_processor and not any("dram" in name for name in covers):
        said.append("memory")
    if all(name.startswith("gpu") for name in covers):
        said.append("the CPU and its memory")
    return [*said, _OF_PARTS]


def changes_of(stretches: Sequence[Stretch]) -> list[dict[str, Any]]:
    """List which domains were added when, where that changed on the way."""
    all_s = sum(each.to_s - each.from_s for each in stretches)
    long = [each for each in stretches if each.to_s - each.from_s >= _LEAST_STRETCH * all_s]
    if len({each.domains for each in long}) < 2:
        return []
    return [
        {"from_s": each.from_s, "to_s": each.to_s, "domains": list(each.domains)} for each in long
    ]

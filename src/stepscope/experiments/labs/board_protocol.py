"""The protocol of measurements on small boards also fixes the machine: what does this one lack?

Power mode, clocks, fan, storage: what of it this machine does not have, or has otherwise, is listed
as missing, and the figures are worth that much less.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.experiments.labs.lab_trials import SheetTrials, not_cold
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.disk import medium_under
from stepscope.hardware.machine_setup import changes, protocol
from stepscope.hardware.procfs import system_root
from stepscope.records.types import MissingPart

_FIXED = ("power_mode", "governor", "clocks", "memory_clock", "fan")


def missing_of_protocol(trials: SheetTrials) -> Iterator[MissingPart]:
    """List what the protocol asks for and these trials did not have."""
    root = system_root()
    yield from not_fixed(root)
    medium = medium_under(Path(trials.plan.spec.data_dir), root)
    if medium.value is None or medium.value.kind is None:
        reason = medium.reason if medium.value is None else medium.value.reason
        yield {"name": "storage medium", "reason": f"{reason}: note it by hand."}
    elif not medium.value.kind.endswith("SSD"):
        yield {"name": "storage medium", "reason": f"{medium.value.kind}, wanted an SSD."}
    yield from not_cold(trials.settings)
    runs = (run for each in trials.settings for run in each.runs)
    for reason in dict.fromkeys(run.summary["absent"].get("energy_j") for run in runs):
        if reason is not None:
            yield {"name": "energy", "reason": reason}


def not_fixed(root: Path) -> Iterator[MissingPart]:
    """List the conditions of the machine that the protocol fixes and this one has otherwise."""
    asked = protocol(root)
    for name in _FIXED:
        now, words = CONDITIONS[name](root), name.replace("_", " ")
        if now.value is None:
            yield {"name": words, "reason": f"{now.reason}."}
        elif name not in asked:
            yield {"name": words, "reason": f"it is {now.value}; the protocol's is not offered."}
        else:
            try:
                differs = changes({name: asked[name]}, root)
            except MachineError as error:
                yield {"name": words, "reason": str(error)}
                continue
            if differs:
                found = f"it is {now.value}, wanted {asked[name]}"
                yield {"name": words, "reason": f"{found}: stepscope doctor --apply sets it."}

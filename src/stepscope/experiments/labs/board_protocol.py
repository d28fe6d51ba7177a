"""What a machine lacks of the measurement protocol for small boards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.experiments.labs.lab_trials import SheetTrials, warm_cache
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.disk import medium_under
from stepscope.hardware.machine_setup import changes, protocol
from stepscope.hardware.procfs import system_root
from stepscope.records.types import MissingPart

_FIXED = ("power_mode", "governor", "clocks", "memory_clock", "fan")


def missing_of_protocol(trials: SheetTrials) -> Iterator[MissingPart]:
    """List the parts of the protocol that these trials did not have."""
    root = system_root()
    yield from not_fixed(root)
    medium = medium_under(Path(trials.plan.spec.data_dir), root)
    if medium.value is None or medium.value.kind is None:
        reason = medium.reason if medium.value is None else medium.value.reason
        yield {"name": "storage medium", "reason": f"{reason}. Record it by hand."}
    elif not medium.value.kind.endswith("SSD"):
        yield {"name": "storage medium", "reason": f"wanted an SSD, found {medium.value.kind}."}
    yield from warm_cache(trials.settings)
    runs = (run for each in trials.settings for run in each.runs)
    for reason in dict.fromkeys(run.summary["absent"].get("energy_j") for run in runs):
        if reason is not None:
            yield {"name": "energy", "reason": reason}


def not_fixed(root: Path) -> Iterator[MissingPart]:
    """List the conditions of the machine that differ from the protocol."""
    wanted = protocol(root)
    for name in _FIXED:
        now, reason = CONDITIONS[name](root), ""
        if now.value is None:
            reason = f"{now.reason}."
        elif name not in wanted:
            reason = f"it is {now.value}; this machine does not offer the protocol's."
        else:
            try:
                if changes({name: wanted[name]}, root):
                    reason = (
                        f"wanted {wanted[name]}, found {now.value}. Run: stepscope doctor --apply"
                    )
            except MachineError as error:
                reason = str(error)
        if reason:
            yield {"name": name.replace("_", " "), "reason": reason}

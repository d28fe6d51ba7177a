"""The protocol of measurements on small boards: one fixed training, the mean of its last epochs.

The protocol also fixes the machine: power mode, clocks, fan, storage. What of it this machine does
not have, or has otherwise, is listed as missing, and the figures are worth that much less.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.errors import MachineError
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import Tried, not_cold, try_settings
from stepscope.hardware.conditions import CONDITIONS
from stepscope.hardware.disk import medium_under
from stepscope.hardware.machine_setup import changes, protocol
from stepscope.hardware.procfs import system_root
from stepscope.stats import known_mean
from stepscope.units import format_duration, format_share

_FIXED = ("power_mode", "governor", "clocks", "memory_clock", "fan")
_COLUMNS = ("loading_s", "training_s", "other_s", "total_s", "loss", "train_accuracy")


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Train as the protocol says, and take the mean of all epochs but the first."""
    tried, missing = try_settings(plan, folder, tools)
    root = system_root()
    missing += [*not_fixed(root), *_medium(plan, root), *not_cold(tried), *_no_energy(tried)]
    rows = [row for each in tried for row in each.curve()]
    if not rows:
        reason = tried[0].status if tried else missing[0]["reason"]
        return found(f"No answer: the training did not complete ({reason}).", False, rows, missing)
    later = rows[1:] or rows
    mean: dict[str, Any] = {"epoch": f"mean of {later[0]['epoch']} to {later[-1]['epoch']}"}
    mean |= {name: known_mean(row[name] for row in later) for name in _COLUMNS}
    share = mean["loading_s"] / mean["total_s"]
    answer = (
        f"An epoch takes {format_duration(mean['total_s'])} (mean of {len(later)} without the "
        f"first, which took {format_duration(rows[0]['total_s'])}), {format_share(share)} of it "
        f"loading, with {plan.spec.workers} workers, prefetch {plan.spec.prefetch} and batches of "
        f"{plan.spec.batch_size}."
    )
    return found(answer, True, [*rows, mean], missing, rows)


def not_fixed(root: Path) -> Iterator[dict[str, str]]:
    """Name what the protocol fixes of a machine and this one has not, or has otherwise."""
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


def _medium(plan: Plan, root: Path) -> Iterator[dict[str, str]]:
    """Say where the protocol's solid-state disk is not what the data lies on."""
    medium = medium_under(Path(plan.spec.data_dir), root)
    if medium.value is None or medium.value.kind is None:
        reason = medium.reason if medium.value is None else medium.value.reason
        yield {"name": "storage medium", "reason": f"{reason}: note it by hand."}
    elif not medium.value.kind.endswith("SSD"):
        yield {"name": "storage medium", "reason": f"{medium.value.kind}, wanted an SSD."}


def _no_energy(tried: list[Tried]) -> list[dict[str, str]]:
    """Say why there are no joules, once for all runs that have none."""
    absent = [run.summary["absent"].get("energy_j") for each in tried for run in each.runs]
    reasons = dict.fromkeys(reason for reason in absent if reason is not None)
    return [{"name": "energy", "reason": reason} for reason in reasons]

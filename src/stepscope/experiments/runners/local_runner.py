"""Trials on this machine, one after the other."""

from __future__ import annotations

import platform
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from stepscope.experiments.runners.ray_cluster import kind_of_machine
from stepscope.experiments.runners.runner import Begin, PlannedTrial
from stepscope.experiments.workload import Workload
from stepscope.records.sweep_folder import Trial
from stepscope.records.types import SettingValue
from stepscope.supervisor.child_supervisor import Outcome


@dataclass(frozen=True)
class Here:
    """The machine that the sweep itself runs on.

    It gives its name and kind where other trials of the sweep were made elsewhere.
    """

    among_others: bool = False

    @property
    def at_once(self) -> int:
        """One: another would measure the first."""
        return 1

    def check(self, workload: Workload, settings: Sequence[Mapping[str, SettingValue]]) -> None:
        """Refuse settings that could only fail here."""
        for values in settings:
            workload.check(values)

    def run(
        self, workload: Workload, planned_trials: Sequence[PlannedTrial], begin: Begin
    ) -> Generator[tuple[Trial, Outcome], None, None]:
        """Make the trials in the planned order."""
        for planned in planned_trials:
            trial = planned.trial
            if self.among_others:
                trial = replace(trial, node=platform.node(), node_kind=kind_of_machine())
            begin(trial)
            yield trial, workload.run(trial.values, planned.trial_request)


HERE = Here()

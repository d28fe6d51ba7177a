"""Where the trials of a sweep run: on this machine, one at a time, or on a Ray cluster.

`ray_runner` hands trials to nodes, `ray_cluster` finds the nodes, `ray_task` runs on a node.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stepscope.experiments.workload import TrialRequest, Workload
from stepscope.hardware.gpu import find_gpus
from stepscope.hardware.host import describe_host
from stepscope.hardware.procfs import system_root
from stepscope.records.sweep_folder import Trial
from stepscope.records.types import SettingValue
from stepscope.supervisor.child_supervisor import Outcome


@dataclass(frozen=True)
class PlannedTrial:
    """A trial to make, and the kind of node that made other trials of its round, if any."""

    trial: Trial
    trial_request: TrialRequest
    node_kind: str | None = None


Begin = Callable[[Trial], None]


class Runner(Protocol):
    """Makes trials, on this machine or elsewhere."""

    @property
    def at_once(self) -> int:
        """How many trials can run at once."""

    def check(self, workload: Workload, settings: Sequence[Mapping[str, SettingValue]]) -> None:
        """Refuse settings that could only fail, before any trial is made."""

    def run(
        self, workload: Workload, planned_trials: Sequence[PlannedTrial], begin: Begin
    ) -> Generator[tuple[Trial, Outcome], None, None]:
        """Make every trial once; give each when it has ended, in any order.

        `begin` receives each trial with its node before it starts, again if it is repeated on
        another node. When a trial is given, its record is at the path of its request.
        """


@dataclass(frozen=True)
class Here:
    """This machine; `among_others` if other trials of the sweep were made elsewhere."""

    among_others: bool = False

    @property
    def at_once(self) -> int:
        """One: a second trial would disturb the first."""
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


_GIB = 2**30


def kind_of_machine() -> str:
    """Describe this machine; only trials of machines of one kind are compared."""
    host = describe_host()
    gpus = [gpu.ask("nvmlDeviceGetName") for gpu in find_gpus(system_root())]
    devices = ", ".join(f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus))
    memory = memory_kind(host["memory_bytes"])
    return f"{host['cpu']}, {host['cpus_usable']} CPUs, {memory}, {devices or 'no GPU'}"


def memory_kind(memory_bytes: int) -> str:
    """Round the memory up to whole GiB: firmware versions reserve different amounts of it."""
    return f"{-(-memory_bytes // _GIB)} GiB"

"""Who makes the trials of a sweep: this machine, one at a time, or the nodes of a Ray cluster.

`Runner` is all that a sweep knows of them. `ray_runner` hands trials to nodes, `ray_cluster` finds
the nodes, and `ray_task` is what happens on one.
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
    """A trial that is wanted, and how and where it is recorded.

    `node_kind` is the kind of node that the other trials of its round were made on, if any were.
    """

    trial: Trial
    trial_request: TrialRequest
    node_kind: str | None = None


Begin = Callable[[Trial], None]


class Runner(Protocol):
    """Makes trials, on this machine or elsewhere."""

    @property
    def at_once(self) -> int:
        """How many trials can be under way at a time, as far as is known now."""

    def check(self, workload: Workload, settings: Sequence[Mapping[str, SettingValue]]) -> None:
        """Refuse settings that could only fail, before any trial is made."""

    def run(
        self, workload: Workload, planned_trials: Sequence[PlannedTrial], begin: Begin
    ) -> Generator[tuple[Trial, Outcome], None, None]:
        """Make every trial once; give each when it has ended, in whatever order.

        `begin` is called before a trial starts, and again where it is made anew elsewhere, with
        the node that it is made on. Its record lies at the trial_request's path when it is given.
        """


# --- This machine


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


# --- What kind of machine is this? Only trials of like machines are compared


_GIB = 2**30


def kind_of_machine() -> str:
    """Say what two machines must share for their trials to be compared."""
    host = describe_host()
    gpus = [gpu.ask("nvmlDeviceGetName") for gpu in find_gpus(system_root())]
    devices = ", ".join(f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus))
    memory = memory_kind(host["memory_bytes"])
    return f"{host['cpu']}, {host['cpus_usable']} CPUs, {memory}, {devices or 'no GPU'}"


def memory_kind(memory_bytes: int) -> str:
    """Say how much memory a machine was built with, in whole GiB.

    Its firmware keeps a part to itself, and twins with another version of it differ in that.
    """
    return f"{-(-memory_bytes // _GIB)} GiB"

"""Who makes the trials of a sweep: this machine, one at a time, or the nodes of a Ray cluster.

here          this machine
on_ray        many nodes, one trial at a time on each
joining       whether there is a cluster at an address
cluster       which nodes there are, and whether they will do
rounds        which trial a free node takes (pure)
at_node       a trial on a node, and its record as bytes
parcel        a folder as bytes, and back
machine_kind  what is alike of machines whose trials can be compared

`Runner` is all that a sweep knows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stepscope.experiments.workload import TrialRequest, Workload
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

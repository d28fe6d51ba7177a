"""Trials on the nodes of a Ray cluster, one at a time on each.

A trial takes all CPUs and GPUs of its node, so that no other job of the cluster runs beside it. If
its node or its process is lost, it is repeated, on another node if possible. Its record arrives
complete or not at all.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.errors import Interrupted, MachineError
from stepscope.experiments.runners import ray_task
from stepscope.experiments.runners.ray_cluster import (
    AUTO,
    Node,
    NodePool,
    connected,
    in_short,
    on_node,
)
from stepscope.experiments.runners.ray_task import Refusal, unpack
from stepscope.experiments.runners.runner import Begin, PlannedTrial
from stepscope.experiments.workload import Workload
from stepscope.records import schema
from stepscope.records.run_folder import RunFolder
from stepscope.records.sweep_folder import Trial
from stepscope.records.types import SettingValue
from stepscope.supervisor.child_supervisor import Outcome
from stepscope.supervisor.signals import stop_signals

_LOOK_EVERY_S = 1.0
_GRACE_S = 10.0  # for cancelled trials to end
_MOST_LOSSES = 3  # then the trial itself takes its nodes down
_WAITS_FOR_NODES_S = 60.0
_ANY_KIND = "any"


@contextmanager
def on_ray(address: str = AUTO, *, mix_nodes: bool = False) -> Iterator[OnRay]:
    """Connect to a cluster whose nodes make trials; `mix_nodes` treats all kinds as one."""
    with connected(address) as pool:
        yield OnRay(pool, mix_nodes)


@dataclass(frozen=True)
class OnRay:
    """The nodes of a cluster that this process is connected to."""

    pool: NodePool
    mix_nodes: bool = False

    @property
    def at_once(self) -> int:
        """One on each node."""
        return max(1, len(self.pool.ready))

    def check(self, workload: Workload, settings: Sequence[Mapping[str, SettingValue]]) -> None:
        """Refuse settings that could only fail on one of the nodes, which have the data."""
        self.pool.ask_for(workload, settings)
        self.pool.wait_for_all()

    def run(
        self, workload: Workload, planned_trials: Sequence[PlannedTrial], begin: Begin
    ) -> Generator[tuple[Trial, Outcome], None, None]:
        """Make the trials on any free node; a round stays with one kind of node.

        A node that joins meanwhile is checked first.

        Raises:
            Interrupted: a stop was requested.
            MachineError: no node is left.
        """
        if not planned_trials:
            return
        self.pool.ask_for(workload, [planned.trial.values for planned in planned_trials])
        say = planned_trials[0].trial_request.listener.output
        work = _Work(workload, self.pool, list(planned_trials), begin, say, self.mix_nodes)
        with stop_signals(pausing=False) as signals:
            try:
                while work.waiting or work.under_way:
                    work.hand_out()
                    yield from work.wait()
                    if signals.stops:
                        raise Interrupted("interrupted")
            finally:
                work.end()


@dataclass
class _Work:
    """Trials that wait or run, each with its node.

    A round stays with its `kind_of_round`; `lost_on` are nodes that lost a trial.
    """

    workload: Workload
    pool: NodePool
    waiting: list[PlannedTrial]
    begin: Begin
    say: Callable[[str], None]
    mix_nodes: bool
    kind_of_round: dict[int, str] = field(init=False)
    under_way: dict[Any, tuple[PlannedTrial, Node]] = field(default_factory=dict)
    lost_on: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    last_node_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        begun = {each.trial.repeat: each.node_kind for each in self.waiting}
        self.kind_of_round = {number: kind for number, kind in begun.items() if kind}

    def hand_out(self) -> None:
        """Give every free node a trial; raise MachineError after a minute without nodes."""
        self.pool.refresh()
        if self.pool.ready:
            self.last_node_s = time.monotonic()
        elif time.monotonic() - self.last_node_s > _WAITS_FOR_NODES_S:
            refusals = "".join(f" {each.message}" for each in self.pool.unfit.values())
            raise MachineError(
                "no node of the Ray cluster is left to make trials. Add one with `ray start "
                f"--address HOST:PORT`, then resume the sweep.{refusals}"
            )
        busy = {node.id for _, node in self.under_way.values()}
        for node in list(self.pool.ready.values()):
            if node.id not in busy:
                planned = self._take(node)
                if planned is not None:
                    self._start(planned, node)

    def _take(self, node: Node) -> PlannedTrial | None:
        """Take a trial for a node: of a round of its kind, else of one whose kind is gone.

        A trial that was lost on this node is left to the others.
        """
        kind, kinds = node.kind, {node.kind, *self.pool.kinds(time.monotonic())}
        others = [each for each in self.pool.ready.values() if each.kind == kind or self.mix_nodes]
        if self.mix_nodes:
            kind, kinds = _ANY_KIND, {_ANY_KIND}
        own, unclaimed = [], []
        for planned in self.waiting:
            lost_on = self.lost_on[planned.trial.index]
            if node.id in lost_on and any(other.id not in lost_on for other in others):
                continue
            held_by = self.kind_of_round.get(planned.trial.repeat)
            if held_by == kind:
                own.append(planned)
            elif held_by not in kinds:
                unclaimed.append(planned)
        found = next(iter(own + unclaimed), None)
        if found is not None:
            self.waiting.remove(found)
            self.kind_of_round[found.trial.repeat] = kind
        return found

    def _start(self, planned: PlannedTrial, node: Node) -> None:
        trial = replace(planned.trial, node=node.name, node_kind=node.kind)
        planned = replace(planned, trial=trial)
        self.begin(trial)
        asked, here = planned.trial_request, str(Path.cwd())
        make = on_node(ray_task.make, node.id, num_cpus=node.cpus, num_gpus=node.gpus)
        answer = make.remote(self.workload, trial.values, asked.path.name, here, asked.time_limit_s)
        self.under_way[answer] = (planned, node)

    def wait(self) -> Iterator[tuple[Trial, Outcome]]:
        """Wait up to a second for trials to end, and give those that did."""
        import ray

        asked = [*self.under_way, *self.pool.looking]
        if not asked:
            time.sleep(_LOOK_EVERY_S)
            return
        for answer in ray.wait(asked, num_returns=1, timeout=_LOOK_EVERY_S)[0]:
            if answer in self.pool.looking:
                refusal = self.pool.take_look(answer)
                if refusal is not None:
                    self.say(f"{refusal.message} It gets no trials.")
                continue
            planned, node = self.under_way.pop(answer)
            try:
                said = ray.get(answer)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:
                said = Refusal(in_short(error), MachineError.exit_code)
            if not isinstance(said, Refusal) and said[0].was_cut_short:
                said = Refusal("the node was asked to stop.", MachineError.exit_code)
            if isinstance(said, Refusal):
                yield from self._again(planned, node, said)
                continue
            outcome, record = said
            path = planned.trial_request.path
            if record is not None:
                unpack(record, path)
                if record.left_behind:
                    left = {"node": node.name, "files": list(record.left_behind)}
                    RunFolder(path).add_event("left_behind", outcome.wall_s, **left)
            yield planned.trial, replace(outcome, asked_to_stop=False)

    def _again(
        self, planned: PlannedTrial, node: Node, why: Refusal
    ) -> Iterator[tuple[Trial, Outcome]]:
        """Repeat a lost trial; one that is lost three times has failed."""
        self.pool.lose(node)
        lost_on = self.lost_on[planned.trial.index]
        lost_on.append(node.id)
        if len(lost_on) < _MOST_LOSSES:
            self.waiting.insert(0, planned)  # it is the next to be made
            lost = f"trial {planned.trial.index + 1} was lost on {node.name}"
            self.say(f"{lost} and is repeated: {why.message}")
            return
        reason = f"it was lost {len(lost_on)} times, the last time on {node.name}: {why.message}"
        yield planned.trial, Outcome(schema.FAILED, reason, why.exit_code)

    def end(self) -> None:
        """Cancel the trials that still run."""
        import ray

        for answer in self.under_way:
            ray.cancel(answer)
        if self.under_way:
            ray.wait(list(self.under_way), num_returns=len(self.under_way), timeout=_GRACE_S)
        self.under_way.clear()

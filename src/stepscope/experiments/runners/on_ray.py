"""Trials on the nodes of a Ray cluster, one at a time on each.

A trial takes all CPUs and GPUs that its node has for Ray, so neither another trial nor another job
of the cluster runs beside it. When its node or its process is lost, it is made again, elsewhere if
there is an elsewhere. What it left on the node is gone with it: a record comes whole or not at all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.errors import Interrupted, MachineError, error_of
from stepscope.experiments.runners import Begin, Order, at_node
from stepscope.experiments.runners.at_node import Delivery, Refusal, Task
from stepscope.experiments.runners.cluster import AUTO, Node, Pool, connected, on_node
from stepscope.experiments.runners.parcel import unpack
from stepscope.experiments.runners.rounds import Rounds
from stepscope.experiments.subjects import Subject
from stepscope.experiments.supervise import Outcome, listening
from stepscope.records import schema
from stepscope.records.folder import RunFolder
from stepscope.records.sweep import Trial

_LOOK_EVERY_S = 1.0
_GRACE_S = 10.0  # for trials to end, after they were told to
_MOST_LOSSES = 3  # then it is the trial that takes its nodes down
_WAITS_FOR_NODES_S = 60.0


@contextmanager
def on_ray(address: str = AUTO, *, mix_nodes: bool = False) -> Iterator[OnRay]:
    """Connect to a cluster whose nodes make trials; `mix_nodes` takes all kinds for one."""
    with connected(address) as pool:
        yield OnRay(pool, mix_nodes)


@dataclass(frozen=True)
class OnRay:
    """The nodes of a cluster that this process is connected to."""

    pool: Pool
    mix_nodes: bool = False

    @property
    def at_once(self) -> int:
        """One on each node."""
        return max(1, len(self.pool.ready))

    def check(self, subject: Subject, settings: Sequence[Mapping[str, Any]]) -> None:
        """Refuse settings that could only fail on one of the nodes: they have the data."""
        import ray

        directory = str(Path.cwd())
        asked = {
            node.name: on_node(at_node.check, node.id, num_cpus=0).remote(
                subject, settings, directory
            )
            for node in self.pool.ready.values()
        }
        for name, answer in asked.items():
            refusal = ray.get(answer)
            if refusal is not None:
                raise error_of(refusal.exit_code, f"{refusal.message} (node {name})")

    def run(
        self, subject: Subject, orders: Sequence[Order], begin: Begin
    ) -> Generator[tuple[Trial, Outcome], None, None]:
        """Make the trials on whichever node is free; a round stays with one kind of node.

        Raises:
            Interrupted: somebody asked to stop.
            MachineError: no node is left.
        """
        rounds = Rounds.of(orders)
        work = _Work(subject, self.pool, rounds, begin, self.mix_nodes)
        with listening(pausing=False) as signals:
            try:
                while rounds.waiting or work.under_way:
                    work.hand_out()
                    yield from work.wait()
                    if signals.stops:
                        raise Interrupted("interrupted")
            finally:
                work.end()


@dataclass
class _Work:
    """Trials that wait, and those that are under way, each with its node."""

    subject: Subject
    pool: Pool
    rounds: Rounds
    begin: Begin
    mix_nodes: bool
    under_way: dict[Any, tuple[Order, Node]] = field(default_factory=dict)
    losses: Counter[int] = field(default_factory=Counter)
    last_node_s: float = field(default_factory=time.monotonic)

    def hand_out(self) -> None:
        """Give every free node a trial.

        Raises:
            MachineError: there has been no node for a while.
        """
        self.pool.refresh()
        if self.pool.ready:
            self.last_node_s = time.monotonic()
        elif time.monotonic() - self.last_node_s > _WAITS_FOR_NODES_S:
            raise MachineError(
                "no node of the Ray cluster is left to make trials. Add one with `ray start "
                "--address HOST:PORT`, then go on with the sweep."
            )
        busy = {node.id for _, node in self.under_way.values()}
        for node in list(self.pool.ready.values()):
            if node.id not in busy:
                order = self._take(node)
                if order is not None:
                    self._start(order, node)

    def _take(self, node: Node) -> Order | None:
        if self.mix_nodes:
            return self.rounds.waiting.pop(0) if self.rounds.waiting else None
        return self.rounds.take(node.kind, self.pool.kinds)

    def _start(self, order: Order, node: Node) -> None:
        trial = replace(order.trial, node=node.name, node_kind=node.kind)
        order = replace(order, trial=trial)
        self.begin(trial)
        attempt = order.attempt
        task = Task(
            attempt.path.name,
            self.subject,
            trial.values,
            str(Path.cwd()),
            attempt.summarize,
            attempt.time_limit_s,
        )
        make = on_node(at_node.make, node.id, num_cpus=node.cpus, num_gpus=node.gpus)
        self.under_way[make.remote(task)] = (order, node)

    def wait(self) -> Iterator[tuple[Trial, Outcome]]:
        """Wait a moment for trials to end, and give those that did."""
        import ray

        asked = [*self.under_way, *self.pool.looking]
        if not asked:
            time.sleep(_LOOK_EVERY_S)
            return
        for answer in ray.wait(asked, num_returns=1, timeout=_LOOK_EVERY_S)[0]:
            if answer in self.pool.looking:
                self.pool.take_look(answer)
                continue
            order, node = self.under_way.pop(answer)
            try:
                said = ray.get(answer)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:
                self.pool.lose(node)
                yield from self._again(order, node, error)
                continue
            if isinstance(said, Delivery) and said.was_cut_short:
                self.pool.lose(node)
                yield from self._again(order, node, MachineError("the node was told to stop"))
                continue
            yield order.trial, replace(_received(said, order, node), asked_to_stop=False)

    def _again(self, order: Order, node: Node, error: Exception) -> Iterator[tuple[Trial, Outcome]]:
        """Have a trial made once more; one that is lost time after time has failed."""
        self.losses[order.trial.index] += 1
        if self.losses[order.trial.index] < _MOST_LOSSES:
            self.rounds.give_back(order)
            lost = f"trial {order.trial.index + 1} was lost with its process on {node.name}"
            order.attempt.onlooker.output(f"{lost}, and is made again: {_in_short(error)}")
            return
        reason = f"its process was lost {_MOST_LOSSES} times; the last time: {_in_short(error)}"
        yield order.trial, Outcome(schema.FAILED, reason, MachineError.exit_code)

    def end(self) -> None:
        """Leave nothing under way."""
        import ray

        for answer in self.under_way:
            ray.cancel(answer)
        if self.under_way:
            ray.wait(list(self.under_way), num_returns=len(self.under_way), timeout=_GRACE_S)
        self.under_way.clear()


def _received(said: Delivery | Refusal, order: Order, node: Node) -> Outcome:
    """Put a trial's record where it belongs; return how the trial ended."""
    if isinstance(said, Refusal):
        raise error_of(said.exit_code, f"{said.message} (node {node.name})")
    if said.record is not None:
        unpack(said.record, order.attempt.path)
        if said.record.left_behind:
            files = list(said.record.left_behind)
            folder = RunFolder(order.attempt.path)
            folder.add_event("left_behind", said.outcome.wall_s, node=node.name, files=files)
    return said.outcome


def _in_short(error: Exception) -> str:
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[0]

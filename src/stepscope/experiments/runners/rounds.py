"""Which trial does a free node take? A round stays with one kind of node.

Settings are compared within a round, and on like machines only. So a kind of node takes a round as
a whole, and the next one when all of its trials are handed out. When a kind is gone, the rest of
its round is for whoever is free: trials are made even where they pair with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from stepscope.experiments.runners import Order


@dataclass
class Rounds:
    """Trials that are waiting for a node, and which kind of node has which round."""

    waiting: list[Order]
    kind_of_round: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, orders: Sequence[Order]) -> Rounds:
        """Begin with all of them; a round that was begun earlier goes on with the same kind."""
        begun = {each.trial.repeat: each.node_kind for each in orders}
        return cls(list(orders), {number: kind for number, kind in begun.items() if kind})

    def take(
        self, kind: str, kinds: Iterable[str], not_those: Collection[int] = ()
    ) -> Order | None:
        """Hand out a trial for a node of this kind; None where the others have what is left.

        `kinds` are those that there are now, `not_those` trials that this node leaves to others.
        """
        there = {*kinds, kind}
        free = [order for order in self.waiting if order.trial.index not in not_those]
        own = self._first(free, lambda held_by: held_by == kind)
        found = own or self._first(free, lambda held_by: held_by not in there)
        if found is not None:
            self.waiting.remove(found)
            self.kind_of_round[found.trial.repeat] = kind
        return found

    def give_back(self, order: Order) -> None:
        """Take back a trial whose node was lost; it is the next to be made."""
        self.waiting.insert(0, order)

    def _first(self, orders: list[Order], fits: Callable[[str | None], bool]) -> Order | None:
        held_by = self.kind_of_round
        return next((each for each in orders if fits(held_by.get(each.trial.repeat))), None)

"""Who trains together: one process alone here, several in `train.distributed`.

The loop asks its team wherever several processes would have to agree or to add something up. One
that is alone has nobody to ask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import nn

from stepscope.data.order import share_of
from stepscope.spec import RunSpec
from stepscope.train.lifetime import StopRequest
from stepscope.train.recorder import Tally


class Team:
    """A training in a single process."""

    rank: int = 0
    world: int = 1
    world_here: int = 1  # of them on this machine

    def share(self, samples: int) -> int:
        """Count the samples of a batch that are this process's."""
        first, last = share_of(samples, self.rank, self.world)
        return last - first

    def wrap(
        self, model: nn.Module, gradients_ready: Callable[[], None], *, has_unused: bool = False
    ) -> nn.Module:
        """Return what is called to train `model`; `gradients_ready` hears of their exchange.

        A network that `has_unused` parameters makes no gradient of them that could be exchanged.
        """
        return model

    def without_exchange(self, network: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which gradients only add up: more batches of the step follow."""
        return contextlib.nullcontext()

    def agreeing(self, stop: StopRequest) -> StopRequest:
        """Return the request to stop that the loop is to obey."""
        return stop

    def total(self, tally: Tally) -> Tally:
        """Return loss and hits of all processes."""
        return tally

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the running statistics of the first."""

    def gather(self, value: Any) -> list[Any]:
        """Return what every process gives, in the order of ranks."""
        return [value]

    def require_alike(self, found: dict[str, Any]) -> None:
        """See that all processes have found the same data: there is one alone."""

    def own_part(self, spec: RunSpec) -> RunSpec:
        """Return the settings with what this process computes of a batch."""
        return spec.model_copy(update={"batch_size": self.share(spec.batch_size)})

    def seed_apart(self, seed: int) -> None:
        """Let chance inside the network, such as dropout, differ between processes."""

    def describe(self, model: nn.Module, batch_size: int) -> dict[str, Any]:
        """Tell of the team what belongs into the record."""
        return {}

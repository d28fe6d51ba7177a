"""What a training's process tree holds beside the training process itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.hardware import host
from stepscope.hardware.processes import TreeReading


@dataclass(frozen=True)
class Beside:
    """Weigh workers and the batches that they have made, from the moment this is made.

    Batches lie in /dev/shm, which is one for the whole machine: what others put there meanwhile
    counts too. Those that the training process has mapped are in its own size.
    """

    _shm_before_bytes: int | None = field(default_factory=host.shared_memory_used_bytes)

    def bytes_of(self, tree: TreeReading) -> int | None:
        """Return the workers' private bytes and batches in flight; None where sizes are unread."""
        if tree.workers_private_bytes is None:
            return None
        shm_now = host.shared_memory_used_bytes()
        in_flight = 0
        if shm_now is not None and self._shm_before_bytes is not None:
            in_flight = max(0, shm_now - self._shm_before_bytes - (tree.shared_rss_bytes or 0))
        return tree.workers_private_bytes + in_flight

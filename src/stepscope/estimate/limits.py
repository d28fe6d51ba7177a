"""How much a run may take on this machine: the tightest of what was asked for and what there is."""

from __future__ import annotations

from stepscope.estimate.memory_bill import Limit, Pool
from stepscope.hardware import host


def memory_limits(
    asked_bytes: int | None, workers: int, device: Limit | None = None, *, unified: bool = False
) -> dict[Pool, Limit]:
    """Return the limit of each pool: workers hand over their batches in shared memory.

    `device` is what a device can give, beside the host or, where `unified`, out of the same memory.
    """
    of_host = host_limit(asked_bytes)
    limits: dict[Pool, Limit]
    if device is None:
        limits = {"host": of_host}
    elif unified:
        limits = {"unified": min(of_host, device, key=lambda limit: limit.bytes)}
    else:
        limits = {"host": of_host, "device": device}
    shared = host.shared_memory_free_bytes() if workers else None
    if shared:
        limits["shared memory"] = Limit("/dev/shm", shared)
    return limits


def host_limit(asked_bytes: int | None) -> Limit:
    """Return the limit that binds in the host's memory."""
    known = {
        "--memory-limit": asked_bytes,
        "control group": host.cgroup_memory_limit_bytes(),
        "physical memory": host.memory_bytes(),
    }
    return min(
        (Limit(of, size) for of, size in known.items() if size is not None),
        key=lambda limit: limit.bytes,
    )

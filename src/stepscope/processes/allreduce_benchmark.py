"""Time the exchange of gradients alone: `python -m stepscope.processes.allreduce_benchmark`.

As many processes as asked for sum so many bytes over all of them, by gloo on this machine, with
nothing computed beside it: the whole of what a training can hide. Gradients go in portions, one
after the other, as in a training.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from stepscope.errors import MachineError
from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.meter.clock import now_ns, seconds
from stepscope.processes.answer import answer_once
from stepscope.train.require_torch import FAILURES, cannot_load

_VALUE_BYTES = 4
_PORTION_BYTES = 25 * 2**20  # of DistributedDataParallel, where nobody sets another
_TIMES = 7
_WARM_UP = 2  # the first ones connect


def time_allreduce(asked: dict[str, Any]) -> dict[str, Any]:
    """Exchange several times, and give how long each took on the first process."""
    try:
        from torch.multiprocessing.spawn import ProcessException, spawn
    except FAILURES as error:
        raise cannot_load("timing an exchange", error) from error
    with tempfile.TemporaryDirectory(prefix="stepscope-exchange-") as folder:
        meeting, told = Path(folder) / "meeting", Path(folder) / "told"
        arguments = (asked["processes"], asked["bytes"], str(meeting), str(told), os.getpid())
        try:
            spawn(_exchange, arguments, nprocs=asked["processes"])
        except ProcessException as error:
            last = str(error).strip().rpartition("\n")[2]
            raise MachineError(f"{asked['processes']} processes cannot exchange: {last}") from error
        return {"exchange_s": [float(line) for line in told.read_text().split()]}


def _exchange(rank: int, world: int, size_bytes: int, meeting: str, told: str, parent: int) -> None:
    """Take part in the exchange as one of its processes."""
    import torch
    import torch.distributed as dist

    die_with_parent(parent)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    gradients = torch.zeros(max(1, size_bytes // _VALUE_BYTES))
    took_s = []
    for _ in range(_WARM_UP + _TIMES):
        dist.barrier()
        began = now_ns()
        for portion in gradients.split(_PORTION_BYTES // _VALUE_BYTES):
            dist.all_reduce(portion)
        took_s.append(seconds(now_ns() - began))
    if rank == 0:
        Path(told).write_text("\n".join(map(repr, took_s[_WARM_UP:])))
    dist.destroy_process_group()


if __name__ == "__main__":
    answer_once(time_allreduce)

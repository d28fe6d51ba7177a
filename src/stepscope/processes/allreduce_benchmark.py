"""Time the allreduce of gradients alone: `python -m stepscope.processes.allreduce_benchmark`.

Several processes on this machine sum buckets of bytes with gloo and compute nothing else.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.meter.clock import now_ns, seconds
from stepscope.processes.answer import answer_once, needing_torch

_VALUE_BYTES = 4
_BUCKET_BYTES = 25 * 2**20  # the default of DistributedDataParallel
_TIMES = 7
_WARM_UP = 2  # the first rounds connect


def time_allreduce(request: dict[str, int]) -> dict[str, list[float]]:
    """Return the time of each allreduce on rank 0."""
    with needing_torch("timing an allreduce"):
        from torch.multiprocessing.spawn import ProcessException, spawn
    with tempfile.TemporaryDirectory(prefix="stepscope-allreduce-") as folder:
        rendezvous, times = Path(folder) / "rendezvous", Path(folder) / "times"
        processes, parent = request["processes"], os.getpid()
        arguments = (processes, request["bytes"], str(rendezvous), str(times), parent)
        try:
            spawn(_run_rank, arguments, nprocs=processes)
        except ProcessException as error:
            last = str(error).strip().rpartition("\n")[2]
            raise MachineError(f"allreduce of {processes} processes failed: {last}") from error
        return {"allreduce_s": [float(line) for line in times.read_text().split()]}


def _run_rank(
    rank: int, world: int, size_bytes: int, rendezvous: str, times: str, parent: int
) -> None:
    """Run the benchmark as one of its ranks; rank 0 writes the times."""
    import torch
    import torch.distributed as dist

    die_with_parent(parent)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    gradients = torch.zeros(max(1, size_bytes // _VALUE_BYTES))
    took_s = []
    for _ in range(_WARM_UP + _TIMES):
        dist.barrier()
        began = now_ns()
        for bucket in gradients.split(_BUCKET_BYTES // _VALUE_BYTES):
            dist.all_reduce(bucket)
        took_s.append(seconds(now_ns() - began))
    if rank == 0:
        Path(times).write_text("\n".join(map(repr, took_s[_WARM_UP:])))
    dist.destroy_process_group()


if __name__ == "__main__":
    answer_once(time_allreduce)

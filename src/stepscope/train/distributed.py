"""Data-parallel training: several processes train one network, each on its part of every batch.

Gradients are summed over all ranks during the backward pass (DistributedDataParallel). Each rank
weights its loss by its share of the step's samples, so that the sum is the gradient of the step's
mean, as in one process; torch's average would be wrong for parts that differ in size. Gradients use
NCCL on CUDA and gloo on a CPU. Stop requests and sums use a separate gloo group, which never waits
for a device.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from stepscope import __version__
from stepscope.data import dataset_registry
from stepscope.data.sample_order import GOLDEN, share_of
from stepscope.errors import MachineError, RequestError
from stepscope.settings import RunSpec
from stepscope.train.probe_step import ProbeStep, training_state_restored
from stepscope.train.rank_consistency import (
    differences_from_one_process,
    gather_settings,
    refuse_disagreement,
)
from stepscope.train.recorder import Tally
from stepscope.train.source_settings import data_source_of
from stepscope.train.stop_request import StopRequest


class ProcessGroup:
    """A training in a single process."""

    rank: int = 0
    world: int = 1
    world_here: int = 1  # processes on this machine

    def share(self, samples: int) -> int:
        """Return how many samples of a batch this process computes."""
        first, last = share_of(samples, self.rank, self.world)
        return last - first

    def wrap(
        self, model: nn.Module, gradients_ready: Callable[[], None], *, has_unused: bool = False
    ) -> nn.Module:
        """Return the module to call in training.

        `gradients_ready` is called before each allreduce. `has_unused` says that some parameters
        get no gradient.
        """
        return model

    def no_sync(self, network: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Return a context that accumulates gradients without an allreduce."""
        return contextlib.nullcontext()

    def shared_stop(self, stop: StopRequest) -> StopRequest:
        """Return the stop request that the loop checks."""
        return stop

    def total(self, tally: Tally) -> Tally:
        """Return the loss and the correct predictions of all processes."""
        return tally

    def share_buffers(self, model: nn.Module) -> None:
        """Broadcast the buffers of rank 0, such as running statistics."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of ranks."""
        return [value]

    def require_alike(self, found: dict[str, Any]) -> None:
        """Raise RequestError if the ranks found different data."""

    def own_part(self, spec: RunSpec) -> RunSpec:
        """Return the spec with this process's share of the batch size."""
        return spec.model_copy(update={"batch_size": self.share(spec.batch_size)})

    def seed_apart(self, seed: int) -> None:
        """Seed each rank differently, for dropout."""

    def describe(self, model: nn.Module, batch_size: int) -> dict[str, Any]:
        """Return the description of the process group for the run's environment."""
        return {}


_GO_ON, _STOP, _STOP_FOR_MEMORY = range(3)
# Settings that may differ between machines and change no loss.
_MAY_DIFFER = frozenset({"threads", "data_dir", "name", "memory_limit", "energy", "require"})


# Newer versions of torch rename the parameter, and warn about the old name.
_SENDS_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


class Ranks(ProcessGroup):
    """A training in several connected processes."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.world_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._control_group = dist.new_group(backend="gloo")

    def wrap(
        self, model: nn.Module, gradients_ready: Callable[[], None], *, has_unused: bool = False
    ) -> nn.Module:
        """Return the network whose backward pass sums gradients over all ranks.

        Buffers stay local until an evaluation. Broadcasting them in every forward pass would make
        all ranks wait there, and a slow rank 0 would look like a slow network.
        """
        own_buffers: dict[str, Any] = {_SENDS_BUFFERS: False}
        network = DistributedDataParallel(
            model, gradient_as_bucket_view=True, find_unused_parameters=has_unused, **own_buffers
        )

        def allreduce(bucket: Any) -> Any:
            gradients_ready()
            summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return summed.then(lambda future: future.value()[0])

        # A lambda: torch rejects string annotations, and all annotations of this file are strings.
        network.register_comm_hook(None, lambda state, bucket: allreduce(bucket))
        return network

    def no_sync(self, network: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Accumulate gradients locally: more batches of the step follow."""
        assert isinstance(network, DistributedDataParallel), "it was wrapped by this process group"
        return network.no_sync()

    def shared_stop(self, stop: StopRequest) -> StopRequest:
        """Return a stop request that all ranks obey after the same step."""
        return AgreedStop(local=stop, group=self._control_group)

    def total(self, tally: Tally) -> Tally:
        """Sum the loss and the correct predictions over all ranks."""
        sums = torch.tensor([tally.loss_sum, tally.samples, *tally.hits], dtype=torch.float64)
        dist.all_reduce(sums, group=self._control_group)
        loss_sum, samples, *correct = sums.tolist()
        return Tally(loss_sum, int(samples), [int(count) for count in correct])

    def share_buffers(self, model: nn.Module) -> None:
        """Broadcast the buffers of rank 0; its running statistics cover its own samples only."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks. A barrier."""
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, value, group=self._control_group)
        return gathered

    def require_alike(self, found: dict[str, Any]) -> None:
        """Raise RequestError if the ranks found different data."""
        refuse_disagreement(
            self.gather(found), "found different data", "Give all of them the same data"
        )

    def describe(self, model: nn.Module, batch_size: int) -> dict[str, Any]:
        """Return rank, share of a batch, and the differences from a single process."""
        return {
            "distributed": {
                "rank": self.rank,
                "processes": self.world,
                "host": socket.gethostname(),
                "backend": dist.get_backend(),
                "share": self.share(batch_size),
                "differs_from_one_process": differences_from_one_process(model),
            }
        }

    def seed_apart(self, seed: int) -> None:
        """Seed each rank differently, for dropout; rank 0 keeps the seed of a single process."""
        if self.rank:
            torch.manual_seed((seed + GOLDEN * self.rank) % 2**63)


@dataclass
class AgreedStop(StopRequest):
    """A stop request that all ranks obey after the same step; otherwise some would wait for ever.

    The ranks combine their requests with an asynchronous allreduce that overlaps a step.
    """

    local: StopRequest = field(default_factory=StopRequest)
    group: Any = None
    _vote: torch.Tensor | None = None
    _pending: Any = None

    def next_batch(self, batches: Any) -> Any:
        """Wait for a batch; None at the end of the epoch, or if the ranks agreed to stop."""
        return None if self.requested else next(batches, None)

    def consult(self) -> None:
        """Take the result of the previous allreduce, and start the next."""
        if self._pending is not None:
            assert self._vote is not None
            self._pending.wait()
            agreed = int(self._vote)
            self.requested = self.requested or agreed != _GO_ON
            self.for_memory = self.for_memory or agreed == _STOP_FOR_MEMORY
        mine = _STOP_FOR_MEMORY if self.local.for_memory else _STOP
        self._vote = torch.tensor(mine if self.local.requested else _GO_ON)
        self._pending = dist.all_reduce(
            self._vote, op=dist.ReduceOp.MAX, group=self.group, async_op=True
        )

    def agree(self) -> None:
        """Combine the requests of all ranks until now. A barrier."""
        self.consult()
        self.consult()


def join(spec: RunSpec) -> Ranks:
    """Connect to the other ranks, with the environment variables of torchrun.

    Raises:
        RequestError: the ranks have different settings, or cannot train on this device.
        MachineError: this machine has fewer devices than processes.
    """
    kind = torch.device(spec.device).type
    if kind == "mps":
        raise RequestError("device: several processes train on cpu or cuda, found mps.")
    if kind == "cuda":
        _take_device(spec.device)
    store, rank, world = next(rendezvous("env://"))
    # A launcher may keep one store over restarts, with the addresses of killed ranks.
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"start {start}", store)
    settings = spec.model_dump(mode="json", exclude=set(_MAY_DIFFER))
    asked = {**settings, "stepscope": __version__, "torch": torch.__version__}
    refuse_disagreement(
        gather_settings(store, rank, world, asked),
        "were asked for different trainings",
        "Start all of them with the same settings",
    )
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    return Ranks()


def is_lost_peer(error: Exception) -> bool:
    """Return whether torch raised this error because another rank has exited."""
    if isinstance(error, dist.DistNetworkError | dist.DistBackendError | dist.DistStoreError):
        return True
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("gloo", "onnection closed by peer", "onnection reset")
    )


def _take_device(asked: str) -> None:
    """Select the CUDA device of this local rank."""
    if ":" in asked:
        raise RequestError(
            f"device: {asked} is one device, and each process takes one of its own. "
            "Use --device cuda."
        )
    local_rank, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= found:
        raise MachineError(
            f"a CUDA device for each process was wanted, found {found} for "
            f"{os.environ.get('LOCAL_WORLD_SIZE', local_rank + 1)} on this machine. "
            "Start fewer processes, or use --device cpu."
        )
    torch.cuda.set_device(local_rank)


# --- Summation order


_SAMPLES = 2
_ORDER_INDEPENDENT = 2  # processes: a + b is b + a


def fix_summation_order(
    spec: RunSpec, wrapped: nn.Module, data_dir: Path, device: torch.device, processes: int
) -> None:
    """Take a probe step, after which the ranks sum gradients in a fixed order.

    All ranks must call it. Two processes need no probe step.
    """
    if processes <= _ORDER_INDEPENDENT:
        return
    dataset = dataset_registry.find(spec.data, data_source_of(spec, data_dir))
    with training_state_restored(wrapped, device):
        ProbeStep(spec, wrapped, dataset, device).take(_SAMPLES)

"""Data-parallel training: several processes train one network, each on its part of every batch.

Each rank weights its loss by its share of the step's samples, and gradients are summed: torch's
average would be wrong for parts that differ in size. Stop requests and sums use a separate gloo
group, which never waits for a device.
"""

from __future__ import annotations

import inspect
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel

from stepscope import __version__
from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSet
from stepscope.data.sample_order import GOLDEN, share_of
from stepscope.errors import MachineError, RequestError
from stepscope.records.types import Environment
from stepscope.settings import RunSpec
from stepscope.train.probe_step import ProbeStep, training_state_restored
from stepscope.train.recorder import Tally
from stepscope.train.source_settings import data_source_of
from stepscope.train.stop_request import StopRequest
from stepscope.train.training_setup import ProcessGroup

T = TypeVar("T")


_CONTINUE, _STOP, _STOP_FOR_MEMORY = range(3)
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
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.world_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._control_group = dist.new_group(backend="gloo")

    def share(self, samples: int) -> int:
        """Return how many samples of a batch this rank computes."""
        first, last = share_of(samples, self.rank, self.world_size)
        return last - first

    def wrap(
        self, spec: RunSpec, model: nn.Module, data_dir: Path, gradients_ready: Callable[[], None]
    ) -> nn.Module:
        """Return the network whose backward pass sums gradients over all ranks.

        Buffers stay local until an evaluation: broadcasting them would make every forward wait.
        """
        dataset = dataset_registry.find(spec.data, data_source_of(spec, data_dir))
        has_unused = bool(take_probe_step(spec, model, dataset))
        network = self.sum_gradients(model, gradients_ready, has_unused=has_unused)
        if self.world_size > _ORDER_INDEPENDENT:
            take_probe_step(spec, network, dataset)  # after it, ranks sum in a fixed order
        return network

    def sum_gradients(
        self, model: nn.Module, gradients_ready: Callable[[], None], *, has_unused: bool = False
    ) -> nn.Module:
        """Wrap a network in DDP; `has_unused` says that some parameters get no gradient."""
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

    def no_sync(self, network: nn.Module) -> AbstractContextManager[None]:
        """Accumulate gradients locally: more batches of the step follow."""
        assert isinstance(network, DistributedDataParallel), "it was wrapped by this process group"
        return network.no_sync()

    def shared_stop(self, stop: StopRequest) -> StopRequest:
        """Return a stop request that all ranks obey after the same step."""
        return AgreedStop(local=stop, group=self._control_group)

    def total(self, tally: Tally) -> Tally:
        """Sum the loss and the correct predictions over all ranks."""
        return Tally.total(self.gather(tally))

    def share_buffers(self, model: nn.Module) -> None:
        """Broadcast the buffers of rank 0; its running statistics cover its own samples only."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks. A barrier."""
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=self._control_group)
        return gathered

    def require_alike(self, extent: dict[str, int]) -> None:
        """Raise RequestError if the ranks found different data."""
        refuse_disagreement(self.gather(extent), "found different data", "Give all ranks the same")

    def describe(self, model: nn.Module, batch_size: int) -> Environment:
        """Return rank, share of a batch, and the differences from a single process."""
        return {
            "distributed": {
                "rank": self.rank,
                "processes": self.world_size,
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
    """A stop request that all ranks obey after the same step, agreed by an async allreduce."""

    local: StopRequest = field(default_factory=StopRequest)
    group: Any = None
    _vote: torch.Tensor | None = None
    _pending: Any = None

    def consult(self) -> None:
        """Take the result of the previous allreduce, and start the next."""
        if self._pending is not None:
            assert self._vote is not None
            self._pending.wait()
            agreed = int(self._vote)
            self.requested = self.requested or agreed != _CONTINUE
            self.for_memory = self.for_memory or agreed == _STOP_FOR_MEMORY
        mine = _STOP_FOR_MEMORY if self.local.for_memory else _STOP
        self._vote = torch.tensor(mine if self.local.requested else _CONTINUE)
        self._pending = dist.all_reduce(
            self._vote, op=dist.ReduceOp.MAX, group=self.group, async_op=True
        )

    def agree(self) -> None:
        """Combine the requests of all ranks until now. A barrier."""
        self.consult()
        self.consult()


def join(spec: RunSpec) -> Ranks:
    """Connect to the other ranks, with the environment variables of torchrun."""
    kind = torch.device(spec.device).type
    if kind == "mps":
        raise RequestError(
            "device: several processes need cpu or cuda, found mps. Use --device cpu."
        )
    if kind == "cuda":
        _select_device(spec.device)
    store, rank, world = next(rendezvous("env://"))
    # A launcher may keep one store over restarts, with the addresses of killed ranks.
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"start {start}", store)
    settings = spec.model_dump(mode="json", exclude=set(_MAY_DIFFER))
    settings |= {"stepscope": __version__, "torch": torch.__version__}
    # Through the store: the process group does not exist yet.
    store.set(f"settings {rank}", json.dumps(settings))
    refuse_disagreement(
        [json.loads(store.get(f"settings {each}")) for each in range(world)],
        "have different settings",
        "Start all ranks with the same",
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


def _select_device(device: str) -> None:
    """Select the CUDA device of this local rank."""
    if ":" in device:
        raise RequestError(
            f"device: each process takes its own, found {device}. Use --device cuda."
        )
    local_rank, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= found:
        wanted = os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1)
        raise MachineError(
            f"device: wanted {wanted} CUDA devices, one for each process, found {found}. "
            "Start fewer processes, or use --device cpu."
        )
    torch.cuda.set_device(local_rank)


_SAMPLES = 2
_ORDER_INDEPENDENT = 2  # processes: a + b is b + a


def take_probe_step(spec: RunSpec, model: nn.Module, dataset: DataSet) -> list[str]:
    """Take a probe step; list the trainable parameters that got no gradient."""
    device = torch.device(spec.device)
    with training_state_restored(model, device):
        ProbeStep(spec, model, dataset, device).take(_SAMPLES)
        return [
            name
            for name, weight in model.named_parameters()
            if weight.requires_grad and weight.grad is None
        ]


def refuse_disagreement(by_rank: Sequence[Mapping[str, object]], what: str, advice: str) -> None:
    """Raise RequestError, which names each difference, if the values of the ranks differ."""
    first = by_rank[0]
    differences = [
        f"{name} is {theirs.get(name)!r} for rank {rank} and {first.get(name)!r} for rank 0"
        for rank, theirs in enumerate(by_rank)
        for name in {**first, **theirs}
        if theirs.get(name) != first.get(name)
    ]
    if differences:
        raise RequestError(f"the ranks {what}: {'; '.join(differences)}. {advice}.")


def differences_from_one_process(model: nn.Module) -> list[str]:
    """List the reasons why losses differ from those of a single process."""
    found = []
    if any(
        isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
        for layer in model.modules()
    ):
        found.append("batch norm uses the statistics of a rank's part of the batch")
    if any(
        layer.dropout > 0
        if isinstance(layer, nn.MultiheadAttention | nn.RNNBase)
        else isinstance(layer, _DropoutNd) and layer.p > 0
        for layer in model.modules()
    ):
        found.append("each rank draws its own dropout")
    return found

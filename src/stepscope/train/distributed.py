"""Several processes that train one network: each computes on its part of every batch.

Gradients are summed over all ranks while the backward pass goes on (DistributedDataParallel). Each
rank weighs its loss by its part of the step's samples, so that the sum is the gradient of the
step's mean, as one process would compute it; torch's own average would be wrong for parts that
differ in size. NCCL carries gradients on CUDA, gloo on a CPU; what is agreed on beside them goes
over a gloo group of its own and never waits for a device.
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
from stepscope.train.probe_step import SmallStep, as_it_was
from stepscope.train.rank_consistency import (
    differences_from_one_process,
    refuse_disagreement,
    tell_each_other,
)
from stepscope.train.recorder import Tally
from stepscope.train.source_settings import data_source_of
from stepscope.train.stop_request import StopRequest

# --- Who trains together: one process alone here, several in `train.distributed`


class ProcessGroup:
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


_GO_ON, _STOP, _STOP_FOR_MEMORY = range(3)
# What may differ from machine to machine, and changes no loss.
_MAY_DIFFER = frozenset({"threads", "data_dir", "name", "memory_limit", "energy", "require"})


# A later torch calls it by another name, and warns of the old one.
_SENDS_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


class Ranks(ProcessGroup):
    """This process and the others of its training, connected."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.world_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._talk = dist.new_group(backend="gloo")

    def wrap(
        self, model: nn.Module, gradients_ready: Callable[[], None], *, has_unused: bool = False
    ) -> nn.Module:
        """Return the network whose backward pass sums gradients over all ranks.

        Buffers stay each rank's own until a test: to send rank 0's in every forward pass would
        make all wait for it there, where a slow rank 0 looks like a slow network.
        """
        own_buffers: dict[str, Any] = {_SENDS_BUFFERS: False}
        network = DistributedDataParallel(
            model, gradient_as_bucket_view=True, find_unused_parameters=has_unused, **own_buffers
        )

        def add_up(bucket: Any) -> Any:
            gradients_ready()
            summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return summed.then(lambda future: future.value()[0])

        # Without annotations: torch refuses those that are strings, as all are in this file.
        network.register_comm_hook(None, lambda state, bucket: add_up(bucket))
        return network

    def without_exchange(self, network: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Keep gradients here: more batches of the step follow."""
        assert isinstance(network, DistributedDataParallel), "it was wrapped by this team"
        return network.no_sync()

    def agreeing(self, stop: StopRequest) -> StopRequest:
        """Return a request to stop that all ranks obey after the same step."""
        return AgreedStop(heard=stop, group=self._talk)

    def total(self, tally: Tally) -> Tally:
        """Add up loss and hits of all ranks."""
        sums = torch.tensor([tally.loss_sum, tally.samples, *tally.hits], dtype=torch.float64)
        dist.all_reduce(sums, group=self._talk)
        loss_sum, samples, *hits = sums.tolist()
        return Tally(loss_sum, int(samples), [int(count) for count in hits])

    def share_buffers(self, model: nn.Module) -> None:
        """Give all ranks the running statistics of rank 0, which has seen its own parts only."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    def gather(self, value: Any) -> list[Any]:
        """Return what every rank gives. All of them wait for one another here."""
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, value, group=self._talk)
        return gathered

    def require_alike(self, found: dict[str, Any]) -> None:
        """Refuse to train together on what is not the same everywhere."""
        refuse_disagreement(
            self.gather(found), "found different data", "Give all of them the same data"
        )

    def describe(self, model: nn.Module, batch_size: int) -> dict[str, Any]:
        """Tell which process this is, its part of a batch, and what differs from one process."""
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
        """Let dropout differ between ranks; rank 0 draws what one process would."""
        if self.rank:
            torch.manual_seed((seed + GOLDEN * self.rank) % 2**63)


@dataclass
class AgreedStop(StopRequest):
    """A stop that all ranks take at the same step, or those that go on would wait for ever.

    What each has heard is exchanged while a step is computed, and is known at its end.
    """

    heard: StopRequest = field(default_factory=StopRequest)
    group: Any = None
    _said: torch.Tensor | None = None
    _exchange: Any = None

    def next_batch(self, batches: Any) -> Any:
        """Wait for a batch; None when there is none left, or a stop was agreed on."""
        return None if self.requested else next(batches, None)

    def consult(self) -> None:
        """Learn what was said a step ago, and say what was heard since."""
        if self._exchange is not None:
            assert self._said is not None
            self._exchange.wait()
            agreed = int(self._said)
            self.requested = self.requested or agreed != _GO_ON
            self.for_memory = self.for_memory or agreed == _STOP_FOR_MEMORY
        mine = _STOP_FOR_MEMORY if self.heard.for_memory else _STOP
        self._said = torch.tensor(mine if self.heard.requested else _GO_ON)
        self._exchange = dist.all_reduce(
            self._said, op=dist.ReduceOp.MAX, group=self.group, async_op=True
        )

    def agree(self) -> None:
        """Learn what all have heard until now. All ranks wait for one another here."""
        self.consult()
        self.consult()


def join(spec: RunSpec) -> Ranks:
    """Connect to the other processes, as torchrun's variables tell, and see that all agree.

    Raises:
        RequestError: the ranks were asked for different trainings, or cannot train on this device.
        MachineError: there are fewer devices than processes here.
    """
    kind = torch.device(spec.device).type
    if kind == "mps":
        raise RequestError("device: several processes train on cpu or cuda, found mps.")
    if kind == "cuda":
        _take_device(spec.device)
    store, rank, world = next(rendezvous("env://"))
    # One store may serve all starts of a launcher, with the addresses of ranks that were killed.
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"start {start}", store)
    settings = spec.model_dump(mode="json", exclude=set(_MAY_DIFFER))
    asked = {**settings, "stepscope": __version__, "torch": torch.__version__}
    refuse_disagreement(
        tell_each_other(store, rank, world, asked),
        "were asked for different trainings",
        "Start all of them with the same settings",
    )
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    return Ranks()


def is_lost_peer(error: Exception) -> bool:
    """Recognise how torch says that another process has gone."""
    if isinstance(error, dist.DistNetworkError | dist.DistBackendError | dist.DistStoreError):
        return True
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("gloo", "onnection closed by peer", "onnection reset")
    )


def _take_device(asked: str) -> None:
    """Give each process of a machine its own CUDA device."""
    if ":" in asked:
        raise RequestError(
            f"device: {asked} is one device, and each process takes one of its own. "
            "Use --device cuda."
        )
    place, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if place >= found:
        raise MachineError(
            f"a CUDA device for each process was wanted, found {found} for "
            f"{os.environ.get('LOCAL_WORLD_SIZE', place + 1)} on this machine. "
            "Start fewer processes, or use --device cpu."
        )
    torch.cuda.set_device(place)


# --- A step before the first, after which several processes add gradients up in one order


_SAMPLES = 2
_ANY_ORDER_WILL_DO = 2  # a + b is b + a


def settle_order(
    spec: RunSpec, wrapped: nn.Module, data_dir: Path, device: torch.device, processes: int
) -> None:
    """Take the small step, where the order of a sum shows; every process must."""
    if processes <= _ANY_ORDER_WILL_DO:
        return
    dataset = dataset_registry.find(spec.data, data_source_of(spec, data_dir))
    with as_it_was(wrapped, device):
        SmallStep(spec, wrapped, dataset, device).take(_SAMPLES)

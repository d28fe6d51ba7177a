"""Build a training from its spec: model, data, optimiser and stages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler

from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSet, Split
from stepscope.data.datasets.wordpiece import read_vocabulary
from stepscope.data.loaders.worker_pool import WorkerPool
from stepscope.data.object_store.bucket import StoredSplit
from stepscope.errors import RequestError
from stepscope.models import registry
from stepscope.models.model_summary import in_mode
from stepscope.models.pretrained import LoadedWeights, load_weights
from stepscope.records.types import Environment
from stepscope.settings import RunSpec
from stepscope.train.activation_checkpointing import recompute_activations
from stepscope.train.device import memory_format_of
from stepscope.train.epoch_plan import Stage, plan_stages, total_steps
from stepscope.train.optimizers import make_optimizer, make_scaler, make_schedule
from stepscope.train.recorder import Tally
from stepscope.train.source_settings import data_source_of
from stepscope.train.split_loaders import (
    LoadedSplit,
    LoaderListeners,
    held_out_split,
    open_split,
    plan,
)
from stepscope.train.stop_request import StopRequest

T = TypeVar("T")


class ProcessGroup:
    """The processes that train one network: here a single one (`train.distributed` has several)."""

    rank: int = 0
    world_size: int = 1
    world_here: int = 1  # processes on this machine

    def share(self, samples: int) -> int:
        """Return how many samples of a batch this process computes."""
        return samples

    def own_part(self, spec: RunSpec) -> RunSpec:
        """Return the spec with this process's share of the batch size."""
        return spec.model_copy(update={"batch_size": self.share(spec.batch_size)})

    def wrap(
        self, spec: RunSpec, model: nn.Module, data_dir: Path, gradients_ready: Callable[[], None]
    ) -> nn.Module:
        """Return the module to call in training; call `gradients_ready` before each allreduce."""
        return model

    def no_sync(self, network: nn.Module) -> AbstractContextManager[None]:
        """Return a context that accumulates gradients without an allreduce."""
        return nullcontext()

    def shared_stop(self, stop: StopRequest) -> StopRequest:
        """Return the stop request that the loop checks."""
        return stop

    def total(self, tally: Tally) -> Tally:
        """Return the loss and the correct predictions of all processes."""
        return tally

    def share_buffers(self, model: nn.Module) -> None:
        """Broadcast the buffers of rank 0, such as running statistics."""

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks."""
        return [value]

    def require_alike(self, extent: dict[str, int]) -> None:
        """Raise RequestError if the ranks found different data."""

    def seed_apart(self, seed: int) -> None:
        """Seed each rank differently, for dropout."""

    def describe(self, model: nn.Module, batch_size: int) -> Environment:
        """Return the description of the process group for the run's environment."""
        return {}


@dataclass(frozen=True)
class Job:
    """A training that is ready to start; `test` may be the held-out samples.

    `network` is what to call in training: the model, or its DistributedDataParallel wrapper.
    """

    spec: RunSpec
    device: torch.device
    model: nn.Module
    network: nn.Module
    optimizer: optim.Optimizer
    schedule: LRScheduler | None
    scaler: torch.amp.GradScaler | None
    train: LoadedSplit
    test: LoadedSplit | None
    stages: list[Stage]
    worker_pool: WorkerPool
    process_group: ProcessGroup

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the loaders read."""
        return self.train.files + (self.test.files if self.test is not None else ())

    @property
    def buckets(self) -> dict[Split, StoredSplit]:
        """The buckets of the splits in an object store."""
        splits: dict[Split, LoadedSplit | None] = {"train": self.train, "test": self.test}
        return {name: each.bucket for name, each in splits.items() if each and each.bucket}

    @property
    def extent(self) -> dict[str, int]:
        """The numbers of samples and steps, which must be the same for all ranks."""
        return {
            "training samples": self.train.order.samples,
            "test samples": 0 if self.test is None else self.test.order.samples,
            "steps": total_steps(self.stages),
        }

    def close(self) -> None:
        """End the loader workers, and stop watching them."""
        self.train.loader.close()
        if self.test is not None:
            self.test.loader.close()
        self.worker_pool.stop_watching()


def prepare_process(spec: RunSpec) -> None:
    """Set torch's device, seed and number of threads for this process."""
    device = torch.device(spec.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # the default device of events and copies
    torch.manual_seed(spec.seed)
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)


def build_model(
    spec: RunSpec,
    on_weights: Callable[[LoadedWeights, bool], None] = lambda taken, has_vocabulary: None,
) -> nn.Module:
    """Return the network of a resolved spec. The same seed gives the same weights.

    `on_weights` receives the pretrained weights, and whether a vocabulary was found with them.
    """
    dataset = dataset_registry.find(spec.data, data_source_of(spec))
    prepare_process(spec)
    model = registry.build(spec.model, classes=dataset.classes, norm=spec.norm)
    if spec.weights is not None:
        folder = Path(spec.weights)
        taken = load_weights(model, spec.model, folder)
        on_weights(taken, read_vocabulary(folder) is not None)
    _try_forward(spec, model, dataset)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError(
            f"model {spec.model} has no trainable parameter. Set requires_grad on at least one."
        )
    if spec.checkpoint_activations and recompute_activations(model) == 0:
        raise RequestError(
            f"checkpoint_activations: {spec.model} has no sequence of blocks to recompute. "
            "Leave out the setting, or use a network of blocks such as resnet18."
        )
    model.to(device=spec.device, memory_format=memory_format_of(spec))  # type: ignore[call-overload]
    return model


def build(
    spec: RunSpec,
    model: nn.Module,
    data_dir: Path,
    listeners: LoaderListeners | None = None,
    process_group: ProcessGroup | None = None,
) -> Job:
    """Return the training of a network. The ranks of `process_group` share each batch."""
    device, process_group = torch.device(spec.device), process_group or ProcessGroup()
    listeners = listeners or LoaderListeners()
    worker_pool = WorkerPool(spec.workers, listeners.on_fallback)
    train = open_split(spec, "train", data_dir, worker_pool, listeners)
    test = None
    if spec.evaluation_split == "validation":
        test = held_out_split(spec, train, worker_pool, listeners)
    elif spec.evaluation_split == "test":
        test = open_split(spec, "test", data_dir, worker_pool, listeners)
    for split in (train, test):
        if split is not None:
            split.order.rank, split.order.world_size = process_group.rank, process_group.world_size
    stages = plan(spec, train, evaluation_split=spec.evaluation_split)
    optimizer = make_optimizer(spec, model.parameters())
    return Job(
        spec=spec,
        device=device,
        model=model,
        network=model,
        optimizer=optimizer,
        schedule=make_schedule(spec, optimizer, total_steps(stages)),
        scaler=make_scaler(spec, device),
        train=train,
        test=test,
        stages=stages,
        worker_pool=worker_pool,
        process_group=process_group,
    )


_FULL_BATCHES = 2  # from the second on, the optimiser has its state


def shorten(job: Job) -> Job:
    """Return a job with two short epochs, to measure its peak memory.

    An epoch keeps as many full batches as the workers prefetch, at least two, and the last batch,
    which may be smaller. All samples stay in memory.
    """
    spec = job.spec
    ready_at_once = spec.workers * spec.prefetch
    steps = -(-max(_FULL_BATCHES, ready_at_once + 1) // spec.accumulate)
    cuts = [(job.train.order, spec.batch_size * spec.accumulate, steps)]
    if job.test is not None:
        cuts.append((job.test.order, spec.batch_size, 1))
    for order, full, times in cuts:  # keep `times` full portions and the remainder at the end
        order.samples = min(order.samples, full * times + order.samples % full)
    per_epoch = -(-len(job.train.order) // spec.accumulate)
    again = -(-_FULL_BATCHES // spec.accumulate)
    stages = plan_stages(2, per_epoch, per_epoch + again, evaluation_split=spec.evaluation_split)
    return replace(job, stages=stages)


def _try_forward(spec: RunSpec, model: nn.Module, dataset: DataSet) -> None:
    """Run two blank samples through the network, to fail before the training starts."""
    wanted = (2, dataset.classes)
    samples = "images" if dataset.tokens is None else "texts"
    try:
        with in_mode(model, training=False), torch.no_grad():
            outputs = model(dataset.blank(2))
    except Exception as error:
        shape = "x".join(map(str, dataset.shape))
        raise RequestError(
            f"model {spec.model} fails on {samples} of {shape} ({spec.data}): "
            f"{type(error).__name__}: {error}"
        ) from error
    found = getattr(outputs, "shape", None)
    if found is None or tuple(found) != wanted:
        raise RequestError(
            f"model {spec.model}: wanted a tensor of shape {wanted} for two {samples}, found "
            f"{type(outputs).__name__ if found is None else tuple(found)}."
        )

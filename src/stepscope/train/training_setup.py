"""Build a training from its spec: model, data, optimiser and stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler

from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSet, DataSource, Split
from stepscope.data.datasets.wordpiece import read_vocabulary
from stepscope.data.loaders.dataloader import Notice
from stepscope.data.loaders.worker_pool import Fallback, WorkerPool
from stepscope.data.object_store.bucket import FromBucket
from stepscope.errors import RequestError
from stepscope.models import registry
from stepscope.models.pretrained import Taken, load_weights
from stepscope.settings import RunSpec
from stepscope.train.activation_checkpointing import recompute_activations
from stepscope.train.device import memory_format_of
from stepscope.train.distributed import ProcessGroup
from stepscope.train.epoch_plan import Stage, total_steps
from stepscope.train.optimizers import make_optimizer, make_scaler, make_schedule
from stepscope.train.source_settings import data_source_of
from stepscope.train.split_loaders import LoadedSplit, held_out_split, open_split, plan


@dataclass(frozen=True)
class Job:
    """A training that is ready to start.

    `test` is the test split or the held-out samples, None for a run without evaluation.
    """

    spec: RunSpec
    device: torch.device
    model: nn.Module
    optimizer: optim.Optimizer
    schedule: LRScheduler | None
    scaler: torch.amp.GradScaler | None
    train: LoadedSplit
    test: LoadedSplit | None
    stages: list[Stage]
    worker_pool: WorkerPool
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    wrapped: nn.Module | None = None

    @property
    def network(self) -> nn.Module:
        """The module to call in training: the model, or its DistributedDataParallel wrapper."""
        return self.model if self.wrapped is None else self.wrapped

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the loaders read."""
        return self.train.files + (self.test.files if self.test is not None else ())

    @property
    def buckets(self) -> dict[Split, FromBucket]:
        """The buckets of the splits in an object store."""
        splits: dict[Split, LoadedSplit | None] = {
            "train": self.train,
            "test": self.test,
        }
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
    spec: RunSpec, on_weights: Callable[[Taken, bool], None] = lambda taken, has_vocabulary: None
) -> nn.Module:
    """Return the network of a resolved spec. The same seed gives the same weights.

    With pretrained weights, `on_weights` receives what was loaded, and whether a vocabulary was
    found with it.
    """
    dataset, device = (
        dataset_registry.find(spec.data, data_source_of(spec)),
        torch.device(spec.device),
    )
    prepare_process(spec)
    model = registry.build(spec.model, classes=dataset.classes, norm=spec.norm)
    if spec.weights is not None:
        folder = Path(spec.weights)
        taken = load_weights(model, spec.model, folder)
        on_weights(taken, read_vocabulary(folder) is not None)
    _try_forward(spec, model, dataset)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError(
            f"model {spec.model} has no parameter that could be trained. Give it one, or leave "
            "requires_grad on."
        )
    if spec.checkpoint_activations and recompute_activations(model) == 0:
        raise RequestError(
            f"checkpoint_activations: {spec.model} has no row of blocks whose activations could be "
            "recomputed. Leave the setting out, or use a network of blocks, such as resnet18."
        )
    model.to(device=device, memory_format=memory_format_of(spec))  # type: ignore[call-overload]
    return model


def build(
    spec: RunSpec,
    model: nn.Module,
    data_dir: Path,
    on_fallback: Callable[[Fallback], None] = lambda fallback: None,
    on_notice: Callable[[Notice], None] = lambda notice: None,
    add_listeners: Callable[[DataSource], DataSource] = lambda reading: reading,
    process_group: ProcessGroup | None = None,
) -> Job:
    """Return the training of a network.

    `on_fallback` is called when a loader continues with fewer workers, `on_notice` with notices
    about batches. `add_listeners` adds the callbacks for an object store to the data source. The
    ranks of `process_group` share each batch.
    """
    device, process_group = torch.device(spec.device), process_group or ProcessGroup()
    worker_pool = WorkerPool(spec.workers, on_fallback)
    train = open_split(spec, "train", data_dir, worker_pool, on_notice, add_listeners)
    test = None
    if spec.judged_on == "validation":
        test = held_out_split(spec, train, worker_pool, on_notice)
    elif spec.judged_on == "test":
        test = open_split(spec, "test", data_dir, worker_pool, on_notice, add_listeners)
    for split in (train, test):
        if split is not None:
            split.order.rank, split.order.world = process_group.rank, process_group.world
    stages = plan(spec, train, judged_on=spec.judged_on)
    optimizer = make_optimizer(spec, model.parameters())
    return Job(
        spec=spec,
        device=device,
        model=model,
        optimizer=optimizer,
        schedule=make_schedule(spec, optimizer, total_steps(stages)),
        scaler=make_scaler(spec, device),
        train=train,
        test=test,
        stages=stages,
        worker_pool=worker_pool,
        process_group=process_group,
    )


def _try_forward(spec: RunSpec, model: nn.Module, dataset: DataSet) -> None:
    """Run two blank samples through the network, to fail before the training starts."""
    wanted = (2, dataset.classes)
    samples = "images" if dataset.tokens is None else "texts"
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(dataset.blank(2))
    except Exception as error:
        shape = "x".join(map(str, dataset.shape))
        raise RequestError(
            f"model {spec.model} fails on {samples} of {shape} ({spec.data}): "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        model.train(training)
    found = getattr(outputs, "shape", None)
    if found is None or tuple(found) != wanted:
        raise RequestError(
            f"model {spec.model} gives {type(outputs).__name__ if found is None else tuple(found)} "
            f"for two {samples}, wanted a tensor of shape {wanted}: a score for each class."
        )

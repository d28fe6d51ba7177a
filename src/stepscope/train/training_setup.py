"""Everything that a training needs, built from its spec before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler

from stepscope.data import dataset_registry
from stepscope.data.data_source import DataSource
from stepscope.data.datasets.wordpiece import read_vocabulary
from stepscope.data.loaders.batch_notices import Notice
from stepscope.data.loaders.worker_pool import Fallback, WorkerPool
from stepscope.data.object_store.bucket import FromBucket
from stepscope.errors import RequestError
from stepscope.models import registry
from stepscope.models.pretrained import Taken, load_weights
from stepscope.settings import RunSpec
from stepscope.train.activation_checkpointing import recompute_activations
from stepscope.train.device import layout_of
from stepscope.train.distributed import ProcessGroup
from stepscope.train.epoch_plan import Stage, total_steps
from stepscope.train.optimizers import make_optimizer, make_scaler, make_schedule
from stepscope.train.source_settings import data_source_of
from stepscope.train.split_loaders import LoadedSplit, held_out_split, open_split, plan


@dataclass(frozen=True)
class Job:
    """A training, ready to begin.

    It is tested on the test split or on held-out samples; one that evaluates nothing on neither.
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
    crew: WorkerPool
    team: ProcessGroup = field(default_factory=ProcessGroup)
    wrapped: nn.Module | None = None

    @property
    def network(self) -> nn.Module:
        """What is called to train the model: itself, or what its team put around it."""
        return self.model if self.wrapped is None else self.wrapped

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that samples are read from while training."""
        return self.train.files + (self.test.files if self.test is not None else ())

    @property
    def buckets(self) -> dict[dataset_registry.Split, FromBucket]:
        """The splits that come out of an object store."""
        splits: dict[dataset_registry.Split, LoadedSplit | None] = {
            "train": self.train,
            "test": self.test,
        }
        return {name: each.bucket for name, each in splits.items() if each and each.bucket}

    @property
    def extent(self) -> dict[str, int]:
        """How much there is to do: processes that train together must find the same."""
        return {
            "training samples": self.train.order.samples,
            "test samples": 0 if self.test is None else self.test.order.samples,
            "steps": total_steps(self.stages),
        }

    def close(self) -> None:
        """End the loader workers and the watch for them."""
        self.train.loader.close()
        if self.test is not None:
            self.test.loader.close()
        self.crew.stop_watching()


def prepare_process(spec: RunSpec) -> None:
    """Set what torch keeps for the whole process: the device, the seed, the threads."""
    device = torch.device(spec.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # events and copies then go to the stream of this device
    torch.manual_seed(spec.seed)
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)


def build_model(
    spec: RunSpec, tell_weights: Callable[[Taken, bool], None] = lambda taken, has_vocabulary: None
) -> nn.Module:
    """Build the network of a resolved spec. The same seed builds the same weights.

    Where the network starts from a checkpoint, `tell_weights` hears what was taken of it, and
    whether its vocabulary lies with it.
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
        tell_weights(taken, read_vocabulary(folder) is not None)
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
    model.to(device=device, memory_format=layout_of(spec))  # type: ignore[call-overload]
    return model


def build(
    spec: RunSpec,
    model: nn.Module,
    data_dir: Path,
    tell: Callable[[Fallback], None] = lambda fallback: None,
    tell_notice: Callable[[Notice], None] = lambda notice: None,
    hear: Callable[[DataSource], DataSource] = lambda reading: reading,
    team: ProcessGroup | None = None,
) -> Job:
    """Build the rest of a training around its network.

    `tell` hears of each time that a loader goes on with fewer workers, `tell_notice` what was
    noticed while batches were made. `hear` puts into a reading who is told of an object store.
    Each batch is shared by the `team`.
    """
    device, team = torch.device(spec.device), team or ProcessGroup()
    crew = WorkerPool(spec.workers, tell)
    train = open_split(spec, "train", data_dir, crew, tell_notice, hear)
    test = None
    if spec.judged_on == "validation":
        test = held_out_split(spec, train, crew, tell_notice)
    elif spec.judged_on == "test":
        test = open_split(spec, "test", data_dir, crew, tell_notice, hear)
    for split in (train, test):
        if split is not None:
            split.order.rank, split.order.world = team.rank, team.world
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
        crew=crew,
        team=team,
    )


def _try_forward(spec: RunSpec, model: nn.Module, dataset: dataset_registry.DataSet) -> None:
    """Send two blank samples through, so that a network that does not fit fails now, not later."""
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

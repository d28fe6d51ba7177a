"""Everything that a training needs, built from its spec before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from stepscope.data import catalogue
from stepscope.data.crew import Crew, Fallback
from stepscope.data.enduring import EnduringLoader, Remaining
from stepscope.data.loader import make_loader
from stepscope.data.order import EpochOrder
from stepscope.data.pipelines import BatchedDataset
from stepscope.data.samples import Samples
from stepscope.errors import RequestError
from stepscope.measure.loading import TimedDataset
from stepscope.models import registry
from stepscope.spec import RunSpec
from stepscope.train.device import layout_of
from stepscope.train.lifetime import start_worker
from stepscope.train.optimizers import make_optimizer, make_scaler, make_schedule
from stepscope.train.recompute import recompute_activations
from stepscope.train.stages import Stage, plan_stages, total_steps


@dataclass(frozen=True)
class Split:
    """The batches of one split, and the order they come in."""

    loader: EnduringLoader
    order: EpochOrder
    dataset: TimedDataset


@dataclass(frozen=True)
class Job:
    """A training, ready to begin."""

    spec: RunSpec
    device: torch.device
    model: nn.Module
    optimizer: optim.Optimizer
    schedule: LRScheduler | None
    scaler: torch.amp.GradScaler | None
    train: Split
    test: Split
    stages: list[Stage]
    crew: Crew

    def close(self) -> None:
        """End the loader workers and the watch for them."""
        self.train.loader.close()
        self.test.loader.close()
        self.crew.stop_watching()


def build_model(spec: RunSpec) -> nn.Module:
    """Build the network of a resolved spec. The same seed builds the same weights."""
    dataset, device = catalogue.find(spec.data), torch.device(spec.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # events and copies then go to the stream of this device
    torch.manual_seed(spec.seed)
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    model = registry.build(spec.model, classes=dataset.classes, norm=spec.norm)
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
) -> Job:
    """Build the rest of a training around its network.

    `tell` hears of each time that a loader goes on with fewer workers.
    """
    dataset, device = catalogue.find(spec.data), torch.device(spec.device)
    crew = Crew(spec.workers, tell)
    train = _split(spec, dataset, "train", data_dir, device, crew)
    test = _split(spec, dataset, "test", data_dir, device, crew)
    steps_per_epoch = -(-len(train.order) // spec.accumulate)
    stages = plan_stages(spec.epochs, steps_per_epoch, spec.max_steps)
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
    )


def _split(
    spec: RunSpec,
    dataset: catalogue.DataSet,
    split: catalogue.Split,
    data_dir: Path,
    device: torch.device,
    crew: Crew,
) -> Split:
    training = split == "train"
    samples: Samples
    if spec.source == "local":
        samples = dataset.open_files(split, data_dir, spec.samples)
    else:
        samples = dataset.load(split, data_dir, spec.samples)
    batches = BatchedDataset(
        samples,
        spec.pipeline,
        dataset.mean,
        dataset.std,
        augment_seed=spec.seed if training and spec.augment == "crop-flip" else None,
    )
    order = EpochOrder(
        len(samples), spec.batch_size, spec.seed, spec.shuffle if training else "none"
    )
    timed = TimedDataset(batches)

    def make(workers: int, keys: Remaining) -> DataLoader[Any]:
        return make_loader(
            timed,
            keys,
            workers=workers,
            prefetch=spec.prefetch,
            persistent_workers=spec.persistent_workers,
            pin_memory=spec.pin_memory and device.type == "cuda",
            on_worker_start=start_worker,
        )

    return Split(EnduringLoader(split, order, make, crew), order, timed)


def _try_forward(spec: RunSpec, model: nn.Module, dataset: catalogue.DataSet) -> None:
    """Send two blank images through, so that a network that does not fit fails now, not later."""
    wanted = (2, dataset.classes)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(torch.zeros(2, *dataset.shape))
    except Exception as error:
        shape = "x".join(map(str, dataset.shape))
        raise RequestError(
            f"model {spec.model} fails on images of {shape} ({spec.data}): "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        model.train(training)
    found = getattr(outputs, "shape", None)
    if found is None or tuple(found) != wanted:
        raise RequestError(
            f"model {spec.model} gives {type(outputs).__name__ if found is None else tuple(found)} "
            f"for two images, wanted a tensor of shape {wanted}: a score for each class."
        )

"""The settings of one run: their names, defaults, limits and one-line explanations."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from stepscope.errors import nearest
from stepscope.units import parse_bytes

Optimizer = Literal["sgd", "adagrad", "adadelta", "rmsprop", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "one-cycle"]
Precision = Literal["fp32", "bf16", "fp16"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
Norm = Literal["batch", "none"]
Augment = Literal["crop-flip", "none"]
Pipeline = Literal["batch", "sample"]
Shuffle = Literal["full", "block"]
Access = Literal["download", "stream"]
Energy = Literal["auto", "off"]
PageCache = Literal["keep", "cold", "cold-epochs"]
OnBadSample = Literal["skip", "fail"]
TestAt = Literal["epochs", "end"]


def _choice(closed: Any, **also: str) -> BeforeValidator:
    """Return a validator for one of several words that ignores case, dashes and underscores."""
    choices: tuple[str, ...] = get_args(closed)
    spellings = {_fold(word): word for word in choices}
    spellings |= {_fold(word): meant for word, meant in also.items()}

    def match(value: object) -> object:
        if isinstance(value, bool):
            value = str(value)
        if value is None:
            value = "none"
        if not isinstance(value, str):
            return value
        found = spellings.get(_fold(value))
        if found is None:
            raise ValueError(f"{value!r} is not a choice.{nearest(value, choices)}")
        return found

    return BeforeValidator(match)


def _fold(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def _bytes(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _shape(value: object) -> object:
    """Parse a shape: 3,224,224 or 3x224x224."""
    parts = _BETWEEN.split(value.strip()) if isinstance(value, str) else value
    if parts is None:
        return None
    if not isinstance(parts, list | tuple) or len(parts) != 3:
        raise ValueError(f"wanted channels, height and width, like 3,224,224; found {value!r}")
    for part in parts:
        whole = part.isascii() and part.isdecimal() if isinstance(part, str) else type(part) is int
        if not whole or not 1 <= int(part) <= LONGEST_SIDE:
            raise ValueError(
                f"wanted whole numbers from 1 to {LONGEST_SIDE:,}, like 3,224,224; found {value!r}"
            )
    return tuple(map(int, parts))


def _device(value: object) -> object:
    if isinstance(value, str):
        kind, colon, index = value.partition(":")
        is_index = kind == "cuda" and index.isascii() and index.isdecimal()
        if kind not in DEVICES or (colon and not is_index):
            raise ValueError(
                f"wanted auto, cpu, cuda, cuda:N or mps, found {value!r}.{nearest(kind, DEVICES)}"
            )
    return value


DEVICES = ("auto", "cpu", "cuda", "mps")
LONGEST_SIDE = 8192
_BETWEEN = re.compile(r"\s*[,x]\s*")


class RunSpec(BaseModel):
    """The settings of one training run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # fmt: off
    model: str = Field("lenet", min_length=1, description="Model of the zoo, or package.module:factory for your own")
    weights: str | None = Field(None, min_length=1, description="Folder of a checkpoint (safetensors) to start from, for mobilebert")
    data: str = Field("shapes", min_length=1, description="Data set: shapes (built in), cifar10, folder (images) or text")
    data_dir: str = Field("data", min_length=1, description="Folder of the data sets")
    source: str = Field("memory", min_length=1, description="Read samples from memory, local files, s3://BUCKET/PREFIX or synthetic")
    access: Annotated[Access, _choice(Access)] = Field("download", description="Download from an object store first, or stream while training")
    endpoint_url: str | None = Field(None, description="Address of an S3-compatible object store")
    pipeline: Annotated[Pipeline, _choice(Pipeline)] = Field("batch", description="Make a batch with array operations, or sample by sample")
    shuffle: Annotated[Shuffle, _choice(Shuffle)] = Field("full", description="Shuffle all samples, or blocks of 1,000")
    augment: Annotated[Augment, _choice(Augment, true="crop-flip", on="crop-flip", yes="crop-flip", false="none", off="none", no="none")] = Field("crop-flip", description="Augment training images with a random crop and flip")
    sequence_length: int = Field(128, ge=3, le=LONGEST_SIDE, description="Cut texts to this number of tokens")
    input: Annotated[tuple[int, int, int] | None, BeforeValidator(_shape)] = Field(None, description="Shape of the images of a folder [default: 3,224,224]")
    on_bad_sample: Annotated[OnBadSample, _choice(OnBadSample)] = Field("skip", description="Skip an image that cannot be read, or fail")
    page_cache: Annotated[PageCache, _choice(PageCache)] = Field("keep", description="Drop the files from memory: never, at the start, before every epoch")
    pipeline_delay_ms: float = Field(0.0, ge=0, le=60_000, description="Delay every sample in the loader, to simulate slow transforms")
    source_delay_ms: float = Field(0.0, ge=0, le=60_000, description="Delay every sample read, to simulate slow storage")
    samples: int | None = Field(None, ge=1, description="Use this number of training samples, and a fifth for testing")
    validation: int = Field(0, ge=0, description="Evaluate on this number of training samples instead of the test set")
    batch_size: int = Field(64, ge=1, description="Samples per batch")
    accumulate: int = Field(1, ge=1, description="Batches per optimiser step (gradient accumulation)")
    epochs: int = Field(3, ge=1, le=10_000, description="Passes over the training data")
    max_steps: int | None = Field(None, ge=1, description="Stop after this number of optimiser steps")
    drop_epochs: int = Field(1, ge=0, description="First epochs to exclude from medians and shares (warm-up)")
    evaluate: bool = Field(True, description="Evaluate before training and after every epoch")
    test_at: Annotated[TestAt, _choice(TestAt)] = Field("epochs", description="Evaluate on the test set after every epoch, or once at the end")
    optimizer: Annotated[Optimizer, _choice(Optimizer)] = Field("sgd", description="Optimiser; nesterov is sgd with Nesterov momentum")
    nesterov: bool = Field(False, description="Use Nesterov momentum (sgd)")
    lr: float = Field(0.01, gt=0, description="Learning rate, or the peak of a schedule")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of sgd and rmsprop")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty; decoupled for adamw")
    schedule: Annotated[Schedule, _choice(Schedule)] = Field("constant", description="Schedule of the learning rate")
    norm: Annotated[Norm, _choice(Norm)] = Field("batch", description="Keep or remove the batch-norm layers")
    device: Annotated[str, BeforeValidator(_device)] = Field("auto", description="Device to train on")
    precision: Annotated[Precision, _choice(Precision)] = Field("fp32", description="Train in fp32, or in mixed precision")
    memory_format: Annotated[MemoryFormat, _choice(MemoryFormat)] = Field("auto", description="Memory format of images; auto depends on the device")
    checkpoint_activations: bool = Field(False, description="Recompute activations in the backward pass to save memory")
    processes: int = Field(1, ge=1, le=1024, description="Processes that share every batch (data parallel)")
    threads: int | None = Field(None, ge=1, le=1024, description="Compute threads of the training process [default: torch's choice]")
    workers: int = Field(0, ge=0, le=1024, description="Loader workers; 0 loads in the training process")
    prefetch: int = Field(2, ge=1, le=1024, description="Batches that each worker prepares in advance")
    persistent_workers: bool = Field(False, description="Keep the workers alive between epochs")
    pin_memory: bool = Field(True, description="Copy batches to page-locked memory; CUDA only")
    memory_limit: Annotated[int | None, BeforeValidator(_bytes)] = Field(None, ge=1, description="Memory limit of the whole run, such as 3.9GiB")
    energy: Annotated[Energy, _choice(Energy, true="auto", on="auto", false="off", none="off")] = Field("auto", description="Read the energy sensors of this machine")
    require: str | None = Field(None, min_length=1, description="Conditions of the machine to insist on, such as power_mode=MAXN")
    layers: int = Field(0, ge=0, description="Time every layer in this number of steps")
    counters: int = Field(0, ge=0, description="Read the CPU's counters by phase in this number of steps")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of weights, sample order and augmentation")
    name: str | None = Field(None, min_length=1, max_length=200, description="Name of the run [default: MODEL-DATA]")
    out: str = Field("runs", min_length=1, description="Parent folder of run folders")
    # fmt: on

    @model_validator(mode="before")
    @classmethod
    def _nesterov_is_sgd(cls, values: Any) -> Any:
        """Convert `optimizer = "nesterov"` to SGD with Nesterov momentum."""
        if isinstance(values, dict) and _fold(str(values.get("optimizer", ""))) == "nesterov":
            return {"nesterov": True, **values, "optimizer": "sgd"}
        return values

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, values: Any) -> Any:
        """Derive settings that others imply: a source for cold files, no test on synthetic data."""
        if not isinstance(values, dict):
            return values
        implied = dict(values)
        cold = _fold(str(values.get("page_cache", "keep"))) != "keep"
        if cold or values.get("data") == "folder":
            implied.setdefault("source", "local")
        if values.get("data") == "text":
            implied.setdefault("augment", "none")
            if _fold(str(values.get("memory_format", "auto"))) == "auto":
                implied["memory_format"] = "contiguous"
        if values.get("source") == "synthetic":
            implied["evaluate"] = False
        return implied

    @model_validator(mode="after")
    def _consistent(self) -> RunSpec:
        complaints = []
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            complaints.append(
                "nesterov: needs optimizer sgd with momentum above 0, "
                f"found {self.optimizer} with momentum {self.momentum:g}"
            )
        if self.persistent_workers and self.workers == 0:
            complaints.append("persistent_workers: needs workers of 1 or more, found 0")
        if self.processes > self.batch_size:
            complaints.append(
                f"processes: needs to be at most the batch size, {self.batch_size}, "
                f"found {self.processes}"
            )
        if self.counters and self.layers:
            complaints.append(
                f"counters: needs layers 0, found {self.layers}: hooks on every layer would be counted"
            )
        complaints += self._unfit_for_source() + self._unfit_for_data()
        if complaints:
            raise ValueError("; ".join(complaints))
        return self

    def _unfit_for_source(self) -> list[str]:
        """Return the settings that do not apply to the source of the samples."""
        found = f"found source {self.source}"
        complaints = []
        if self.source == "synthetic":
            nothing = "synthetic batches are in memory, so there is nothing to load"
            if self.workers:
                complaints.append(f"workers: needs 0, found {self.workers}: {nothing}")
            if self.pipeline_delay_ms:
                complaints.append(f"pipeline_delay_ms: needs 0 with source synthetic: {nothing}")
        stored = "://" in self.source
        in_memory = self.source in ("memory", "synthetic")
        if self.source_delay_ms and (in_memory or (stored and self.access == "download")):
            also = ", or access stream" if stored else ""
            complaints.append(
                f"source_delay_ms: needs samples that are read while training, {found}. "
                f"Use source local{also}"
            )
        if self.page_cache != "keep" and (in_memory or stored):
            complaints.append(
                f"page_cache: {self.page_cache} needs samples that are read from files, "
                f"{found}. Use source local, or leave it out"
            )
        return complaints

    def _unfit_for_data(self) -> list[str]:
        """Return the settings that do not apply to this kind of samples."""
        if self.data != "text":
            if self.sequence_length == type(self).model_fields["sequence_length"].default:
                return []
            return [f"sequence_length: needs data text, found data {self.data}"]
        of_images = {"augment": "none", "pipeline": "batch", "memory_format": "contiguous"}
        return [
            f"{name}: needs {wanted} with data text, found {found}, which is for images"
            for name, wanted in of_images.items()
            if (found := getattr(self, name)) != wanted
        ]

    @property
    def evaluation_split(self) -> Literal["test", "validation"] | None:
        """The split that the run is evaluated on; None without an evaluation."""
        if not self.evaluate:
            return None
        return "validation" if self.validation else "test"

    @property
    def splits_read(self) -> tuple[Literal["train", "test"], ...]:
        """The splits of the data set that are opened; held-out samples come from `train`."""
        return ("train", "test") if self.evaluation_split == "test" else ("train",)

    @property
    def run_name(self) -> str:
        """Return the name of the run: as set, or from its model and data."""
        return self.name or f"{self.model}-{self.data}"


# The headings under which the settings are listed, in help and in the docs.
GROUPS: dict[str, tuple[str, ...]] = {
    "Model": ("model", "weights", "norm"),
    "Data": (
        *("data", "data_dir", "source", "access", "endpoint_url", "samples", "validation"),
        *("augment", "shuffle", "pipeline", "input", "sequence_length", "on_bad_sample"),
        "page_cache",
    ),
    "Training": (
        *("batch_size", "epochs", "max_steps", "optimizer", "lr", "momentum", "nesterov"),
        *("weight_decay", "schedule", "accumulate", "evaluate", "test_at", "seed"),
    ),
    "Loader": (
        *("workers", "prefetch", "persistent_workers", "pin_memory"),
        *("pipeline_delay_ms", "source_delay_ms"),
    ),
    "Hardware": (
        *("device", "precision", "memory_format", "checkpoint_activations", "threads"),
        *("processes", "memory_limit", "require"),
    ),
    "Measurement": ("drop_epochs", "layers", "counters", "energy"),
    "Output": ("name", "out"),
}
# PyTorch's names, accepted wherever a setting is named.
ALIASES = {"num_workers": "workers", "prefetch_factor": "prefetch", "learning_rate": "lr"}


def field_names() -> tuple[str, ...]:
    """Return the names of the settings in the order of their definition."""
    return tuple(RunSpec.model_fields)


def takes_number(name: str) -> bool:
    """Return whether a setting is a number, for which pydantic would also accept booleans."""
    return RunSpec.model_fields[name].annotation in (int, float, int | None)

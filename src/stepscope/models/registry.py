"""The names that `--model` takes: the zoo's, `efficient:DESIGN`, `package.module:factory`.

Importing this module, `names` and `check_name` need no torch; `build` does.
"""

from __future__ import annotations

import importlib
import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from stepscope.errors import RequestError, nearest, require_packages
from stepscope.models.efficient_design import is_design, read_design

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ZooEntry:
    """A network of the zoo: its module and factory, its usual input and number of classes.

    The input shape of a text is its length; `tokens` is the vocabulary size.
    """

    module: str
    factory: str
    input_shape: tuple[int, ...]
    classes: int
    tokens: int | None = None


_CIFAR = (3, 32, 32)
_IMAGENET = (3, 224, 224)
_TEXT = (128,)

ZOO: Mapping[str, ZooEntry] = MappingProxyType(
    {
        "lenet": ZooEntry("lenet", "LeNet", _CIFAR, 10),
        "vgg11": ZooEntry("vgg", "vgg11", _CIFAR, 10),
        "vgg11_imagenet": ZooEntry("vgg", "vgg11_imagenet", _IMAGENET, 10),
        "resnet18": ZooEntry("resnet", "resnet18", _CIFAR, 10),
        "resnet18_imagenet": ZooEntry("resnet", "resnet18_imagenet", _IMAGENET, 1000),
        "resnet50": ZooEntry("resnet", "resnet50", _CIFAR, 10),
        "resnet50_imagenet": ZooEntry("resnet", "resnet50_imagenet", _IMAGENET, 1000),
        "preact_resnet18": ZooEntry("resnet", "preact_resnet18", _CIFAR, 10),
        "resnext29_2x64d": ZooEntry("resnet", "resnext29_2x64d", _CIFAR, 10),
        "mobilenet": ZooEntry("mobilenet", "mobilenet", _CIFAR, 10),
        "mobilenetv2": ZooEntry("mobilenet", "mobilenetv2", _CIFAR, 10),
        "mobilenetv2_imagenet": ZooEntry("mobilenet", "mobilenetv2_imagenet", _IMAGENET, 1000),
        "efficient-accurate": ZooEntry("efficient_net", "efficient_accurate", _CIFAR, 10),
        "efficient-small": ZooEntry("efficient_net", "efficient_small", _CIFAR, 10),
        "mobilebert": ZooEntry("mobilebert", "mobilebert", _TEXT, 2, tokens=30_522),
        "mobilebert-small": ZooEntry("mobilebert", "mobilebert_small", _TEXT, 2, tokens=8_192),
    }
)


def check_name(name: str) -> None:
    """Raise a RequestError for an unknown name; of `package.module:factory` check the syntax."""
    if is_design(name):
        read_design(name)
    elif ":" in name:
        _split(name)
    elif name not in ZOO:
        raise RequestError(
            f"unknown model {name!r}.{nearest(name, ZOO)} "
            "Name your own model as 'package.module:factory'."
        )


def check_installed(name: str) -> None:
    """Raise a MissingExtraError if the library of a network is not installed."""
    if name in ZOO and ZOO[name].tokens is not None:
        require_packages(f"model {name}", "text", "transformers", "safetensors")


def build(name: str, *, classes: int, norm: Literal["batch", "none"] = "batch") -> nn.Module:
    """Return the network of a name, with fresh weights, on the CPU.

    For `package.module:factory` the current directory is added to `sys.path`, as with `python -m`.
    The factory gets `num_classes=` or `classes=` if it takes either.
    """
    check_name(name)
    if classes < 1:
        raise RequestError(f"model {name!r} needs at least 1 class, got {classes}.")
    require_packages("building a model", "train", "torch")
    from stepscope.models.batch_norm import without_batch_norm
    from stepscope.models.user_model import build_user_model

    if name in ZOO:
        check_installed(name)
        entry = ZOO[name]
        family = importlib.import_module(f"{__package__}.{entry.module}")
        model: nn.Module = getattr(family, entry.factory)(num_classes=classes)
    elif is_design(name):
        from stepscope.models.efficient_net import Efficient

        model = Efficient(read_design(name), num_classes=classes)
    else:
        model = build_user_model(*_split(name), classes=classes)
    if norm == "none":
        model = without_batch_norm(model, keep_inplace=name in ZOO)
    return model


def _split(name: str) -> tuple[str, str]:
    """Return the module and the factory of `package.module:factory`."""
    module, _, factory = name.partition(":")
    if _is_dotted(module) and _is_dotted(factory):
        return module, factory
    raise RequestError(
        f"cannot read the model name {name!r}. Name your own model as 'package.module:factory': "
        "the function make_net in nets/small.py is 'nets.small:make_net'."
    )


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))

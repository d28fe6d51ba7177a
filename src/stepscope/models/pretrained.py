"""Load the weights of a local MobileBERT checkpoint of the transformers library.

Only safetensors are read: `pytorch_model.bin` is a pickle, which may run code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import DataError, RequestError
from stepscope.models.registry import ZOO

if TYPE_CHECKING:
    import torch
    from torch import nn

    from stepscope.models.mobilebert import MobileBert

WEIGHTS, CONFIG = "model.safetensors", "config.json"
# Layers of a task, not of the language: not loaded if they do not fit.
_HEAD = ("classifier.", "mobilebert.pooler.")
# Settings that must agree besides the shapes, because they change the computation.
_SAME = (
    *("num_attention_heads", "hidden_act", "normalization_type", "layer_norm_eps", "pad_token_id"),
    *("use_bottleneck_attention", "key_query_shared_bottleneck"),
    *("num_hidden_layers", "num_feedforward_networks"),
)


@dataclass(frozen=True)
class LoadedWeights:
    """The number of tensors that were loaded, and the names of those that keep fresh weights."""

    tensors: int
    fresh: tuple[str, ...]


def check_weights(model_name: str, folder: Path) -> None:
    """Raise a RequestError if a folder has no weights for a network of this name."""
    takes = [name for name, entry in ZOO.items() if entry.tokens is not None]
    if model_name not in takes:
        raise RequestError(
            f"weights: only {' and '.join(takes)} can start from a checkpoint, found {model_name}. "
            "Leave --weights out."
        )
    if (folder / WEIGHTS).is_file():
        return
    pickled = sorted(file.name for file in folder.glob("*.bin")) if folder.is_dir() else []
    if pickled:
        raise RequestError(
            f"weights: wanted {folder / WEIGHTS}, found {', '.join(pickled)}. Pickles may run code "
            "and are not read. Save it with "
            "`model.save_pretrained(DIR, safe_serialization=True)`."
        )
    raise RequestError(
        f"weights: wanted a folder written by `save_pretrained`, with {WEIGHTS}; {folder} is "
        f"{'a folder without it' if folder.is_dir() else 'not a folder'}."
    )


def load_weights(model: nn.Module, model_name: str, folder: Path) -> LoadedWeights:
    """Load the weights of a checkpoint into a network; a head that does not fit stays fresh."""
    check_weights(model_name, folder)
    from stepscope.models.mobilebert import MobileBert

    assert isinstance(model, MobileBert), "no other network of the zoo takes weights"
    _check_config(model, model_name, folder / CONFIG)
    own = model.network.state_dict()
    found = _read(folder / WEIGHTS)
    fits = {name: each for name, each in found.items() if own.get(name, each).shape == each.shape}
    taken = {name: each for name, each in fits.items() if name in own}
    fresh = tuple(name for name in own if name not in taken)
    wrong = [name for name in fresh if not name.startswith(_HEAD)]
    if wrong:
        name = wrong[0]
        there = tuple(found[name].shape) if name in found else "none"
        raise RequestError(
            f"weights: {folder / WEIGHTS} is not for {model_name}: wanted {name} of shape "
            f"{tuple(own[name].shape)}, found {there}; {len(wrong)} of {len(own)} tensors do not "
            "fit."
        )
    model.network.load_state_dict(taken, strict=False)
    return LoadedWeights(len(taken), fresh)


def _check_config(model: MobileBert, model_name: str, file: Path) -> None:
    """Compare the checkpoint's configuration, if it has one, with the network's."""
    if not file.is_file():
        return
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        kind = config["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read {file}: {type(error).__name__}: {error}.") from error
    if kind != model.config.model_type:
        raise RequestError(
            f"weights: wanted a checkpoint of {model.config.model_type}, {file} has {kind!r}."
        )
    theirs = type(model.config)().to_dict() | config  # with the library's defaults
    ours = model.config.to_dict()
    differ = [
        f"{name} is {theirs[name]} there and {ours[name]} here"
        for name in _SAME
        if theirs[name] != ours[name]
    ]
    if differ:
        raise RequestError(
            f"weights: the checkpoint in {file.parent} does not fit {model_name}: "
            f"{'; '.join(differ)}."
        )


def _read(file: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"cannot read {file}: {error}. Copy or download the checkpoint again."
        ) from error

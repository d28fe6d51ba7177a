"""The number of samples and bytes in a batch of any structure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MemberDescriptorType
from typing import Any

import torch

# Limits of the search: a batch may contain a vocabulary.
_DEEPEST = 6
_FIRST_PARTS = 32
_PLAIN = (str, bytes, int, float, type(None))
_PLAIN_PARTS = (torch.Tensor, list, tuple, *_PLAIN)


def samples_of(batch: Any) -> int | None:
    """Return the number of samples in a batch: the length of its first tensor.

    The batch may be an object of the script, whose code may raise when it is inspected. No such
    error may reach the script's loop.
    """
    try:
        return _samples_of(batch, _DEEPEST)
    except Exception:
        return None


def samples_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the number of samples in a module's arguments: the length of their first tensor."""
    if torch._C._is_tracing():  # reading a length would become part of the graph
        return None
    values = (*args, *kwargs.values()) if kwargs else args
    try:
        for value in values:
            if isinstance(value, torch.Tensor) and value.dim():
                return value.size(0) if type(value) is torch.Tensor else len(value)
    except Exception:  # a tensor of another kind
        return None
    return samples_of_arguments(values)


def samples_of_arguments(values: Sequence[Any]) -> int | None:
    """Return the number of samples in a call without tensor arguments.

    A list of tensors has one for each sample, or one for each input: alone it is ambiguous.
    """
    try:
        if len(values) == 2 and isinstance(values[1], list | tuple):  # images, a target for each
            return samples_of(values) if _is_of_mappings(values[1]) else None
        for value in values:
            tells = not isinstance(value, list | tuple) or _is_of_mappings(value)
            samples = samples_of(value) if tells else None
            if samples is not None:
                return samples
    except Exception:  # the script's code, as in `samples_of`
        pass
    return None


def _is_of_mappings(values: Sequence[Any]) -> bool:
    return bool(values) and isinstance(values[0], Mapping)


def _samples_of(batch: Any, deepest: int, in_object: bool = False) -> int | None:
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if not deepest:
        return None
    if isinstance(batch, list | tuple):
        if batch and _is_an_object_each(batch):
            return len(batch)
        if len(batch) == 2 and _is_one_each(*batch):
            return len(batch[0])
        parts: Iterable[Any] | None = batch
    else:
        parts = _parts(batch)
    if parts is None:
        if isinstance(batch, _PLAIN):
            return None
        if hasattr(type(batch), "num_graphs") and isinstance(graphs := batch.num_graphs, int):
            return graphs
        if in_object:  # a data set, a vocabulary: not training data
            return None
        state = _state(batch)
        if type(size := state.get("batch_size", state.get("num_graphs"))) is int:
            return size
        tensors = [part for part in state.values() if isinstance(part, torch.Tensor)]
        if lengths := [len(tensor) for tensor in tensors if tensor.dim()]:
            return lengths[0]  # before other parts; a scalar tensor is not a batch
        parts = [part for part in state.values() if not isinstance(part, torch.Tensor)]
        in_object = True
    for looked_at, part in enumerate(parts):
        samples = _samples_of(part, deepest - 1, in_object)
        if samples is not None or looked_at == _FIRST_PARTS:
            return samples
    return None


def _state(thing: Any) -> dict[str, Any]:
    """Return the attributes and slots of an object, without calling any of its code.

    They are in the order in which they were set. Properties are not read: they may be slow or have
    side effects.
    """
    if isinstance(thing, type) or callable(thing):
        return {}
    kept = {}
    for kind in reversed(type(thing).__mro__):
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType):
                try:
                    kept[name] = slot.__get__(thing)
                except AttributeError:  # an empty slot
                    continue
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return kept
    return kept | attributes if isinstance(attributes, dict) else kept


def _is_an_object_each(batch: Sequence[Any]) -> bool:
    """Return whether each sample is a mapping or an object of the script."""
    first = batch[0]
    if isinstance(first, _PLAIN_PARTS):
        return False
    if isinstance(first, Mapping):
        return _is_a_mapping_each(batch)
    if isinstance(first, Sequence) or hasattr(type(first), "num_graphs"):
        return False
    if any(type(each) is not type(first) for each in batch):
        return False
    return _is_a_mapping_each([_state(each) for each in batch])


def _is_a_mapping_each(batch: Sequence[Any]) -> bool:
    """Return whether each sample is a separate mapping, as in some detectors.

    A batch may also begin with a mapping of all samples. Then its tensors have equal lengths, as
    have those of another mapping beside it.
    """
    first = batch[0]
    if not all(isinstance(each, Mapping) and each.keys() == first.keys() for each in batch):
        return False
    if any(isinstance(value, int | float | str) for value in first.values()):
        return True
    lengths = _lengths(first)
    return len(lengths) < 2 or len(set(lengths).union(*map(_lengths, batch[1:]))) > 1


def _lengths(mapping: Mapping[Any, Any]) -> list[int]:
    tensors = [value for value in mapping.values() if isinstance(value, torch.Tensor)]
    return [len(value) if value.dim() else 0 for value in tensors]


def _is_one_each(images: Any, targets: Any) -> bool:
    """Return whether there is one target for each image, as in detectors: images differ in size.

    Targets are mappings, or both are tuples of similar tensors as `zip(*samples)` makes them, which
    torch's collate never does.
    """
    both = isinstance(images, list | tuple) and isinstance(targets, list | tuple)
    if not both or len(images) != len(targets) or not len(images):
        return False
    if isinstance(targets[0], Mapping):
        return True
    if type(images) is not tuple or type(targets) is not tuple:
        return False
    tensors = [image for image in images if isinstance(image, torch.Tensor)]
    kinds = {(tensor.dim(), tensor.dtype) for tensor in tensors}
    return len(tensors) == len(images) and len(kinds) == 1


def bytes_of(batch: Any) -> int:
    """Return the size of a batch's tensors, which a worker passes on in shared memory."""
    try:
        if isinstance(batch, torch.Tensor):
            return batch.numel() * batch.element_size()
        return sum(map(bytes_of, _parts(batch) or ()))
    except Exception:  # the script's code, as in `samples_of`
        return 0


def _parts(batch: Any) -> Iterable[Any] | None:
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return batch
    return None

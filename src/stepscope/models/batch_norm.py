"""Take the batch norm out of a network, ours or anybody's, and leave the rest as it was."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def without_batch_norm(model: nn.Module, *, keep_inplace: bool = False) -> nn.Module:
    """Replace every batch norm in a model by the identity, and return the model.

    The model itself is changed; only where it is nothing but a batch norm does another come back.
    Reaches `nn.BatchNorm1d/2d/3d`, `nn.SyncBatchNorm` and what inherits from them. Not reached:
    `F.batch_norm` calls, and layers that a model keeps in a plain list.

    A batch norm hands on a fresh tensor, the identity hands on its own input: an in-place
    activation behind it could now overwrite what a shortcut still reads, with no error. So every
    in-place layer of the model is made to allocate, unless `keep_inplace` says that none stands in
    such a place (true of the zoo, and tested). `F.relu_` and its like are out of reach.
    """
    if isinstance(model, _BatchNorm):
        return nn.Identity()
    identities: dict[_BatchNorm, nn.Identity] = {}
    for parent in model.modules():
        # Not `named_children`, which passes over the second place of a shared layer.
        for name, child in parent._modules.items():
            if isinstance(child, _BatchNorm):
                parent._modules[name] = identities.setdefault(child, nn.Identity())
    if identities and not keep_inplace:
        _allocate_activations(model)
    return model


def _allocate_activations(model: nn.Module) -> None:
    for module in model.modules():
        if vars(module).get("inplace") is True:
            vars(module)["inplace"] = False

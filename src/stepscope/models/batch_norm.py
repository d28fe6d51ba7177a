"""Remove batch norm from a network."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def without_batch_norm(model: nn.Module, *, keep_inplace: bool = False) -> nn.Module:
    """Replace every batch norm of a model by the identity, in place, and return the model.

    The identity returns its input itself, so an in-place activation after it could overwrite a
    tensor that a shortcut still reads: in-place layers are made to allocate, unless `keep_inplace`.
    """
    if isinstance(model, _BatchNorm):
        return nn.Identity()
    identities: dict[_BatchNorm, nn.Identity] = {}
    for parent in model.modules():
        # Not `named_children`, which omits the second place of a shared layer.
        for name, child in parent._modules.items():
            if isinstance(child, _BatchNorm):
                parent._modules[name] = identities.setdefault(child, nn.Identity())
    if identities and not keep_inplace:
        for module in model.modules():
            if vars(module).get("inplace") is True:
                vars(module)["inplace"] = False
    return model

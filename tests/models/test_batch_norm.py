"""What `--norm none` promises: no batch norm left, and nothing else changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stepscope.models.batch_norm import without_batch_norm
from stepscope.models.registry import ZOO, build

OF_IMAGES = [name for name, entry in ZOO.items() if entry.tokens is None]


def inplace_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "inplace", False)]


def norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_no_batch_norm_remains_and_only_its_parameters_are_gone(name):
    with torch.device("meta"):
        with_norm = build(name, classes=10)
        model = build(name, classes=10, norm="none")
    assert norms(model) == []
    gone = sum(p.numel() for norm in norms(with_norm) for p in norm.parameters())
    left = sum(p.numel() for p in model.parameters())
    assert left == sum(p.numel() for p in with_norm.parameters()) - gone
    assert list(model.buffers()) == []
    assert model(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)


# VGG11 in the ImageNet layout has no batch norm to lose, and takes two seconds to draw.
@pytest.mark.parametrize("name", sorted({*OF_IMAGES} - {"vgg11_imagenet"}))
def test_without_batch_norm_no_zoo_network_overwrites_what_it_still_reads(name):
    torch.manual_seed(0)
    model = build(name, classes=10, norm="none")
    # The default draw lets the signal die on the way, and zeros would hide an overwritten one.
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    batch = torch.randn(1, 3, 32, 32)
    torch.manual_seed(1)  # for dropout
    in_place = model(batch)
    torch.autograd.backward(in_place.sum())

    for layer in inplace_layers(model):
        vars(layer)["inplace"] = False
    torch.manual_seed(1)
    with torch.no_grad():
        allocated = model(batch)
    torch.testing.assert_close(in_place.detach(), allocated, rtol=1e-4, atol=1e-4)


# Torch warns that lazy layers may change.
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_every_kind_of_batch_norm_is_taken_out():
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    layers = [*(kind(4) for kind in kinds), nn.LazyBatchNorm2d()]
    model = without_batch_norm(nn.Sequential(nn.Sequential(*layers)))
    assert [type(layer) for layer in model.get_submodule("0").children()] == [nn.Identity] * 5
    assert isinstance(without_batch_norm(nn.BatchNorm2d(4)), nn.Identity), "the model itself"


def test_other_norms_in_place_activations_and_the_model_itself_stay():
    norms = (nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm2d(4))
    model = nn.Sequential(*norms, nn.ReLU(inplace=True))
    kinds = [type(layer) for layer in model]
    assert without_batch_norm(model) is model
    assert [type(layer) for layer in model] == kinds
    assert len(inplace_layers(model)) == 1


def test_a_norm_shared_by_two_places_goes_from_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.BatchNorm2d(4)
            self.second = self.first
            self.inside = nn.Sequential(self.first, nn.Conv2d(4, 4, 1), self.first)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.inside(self.first(x)))
            return out

    model = without_batch_norm(Twice())
    assert norms(model) == []
    assert model.get_submodule("first") is model.get_submodule("inside.2")
    assert model(torch.ones(1, 4, 2, 2)).shape == (1, 4, 2, 2)


class TheirPreActBlock(nn.Module):
    """Right with batch norm; without it, the in-place ReLU stands on the block's input."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.bn(x)) + x
        return out


def test_an_in_place_activation_behind_a_removed_norm_does_not_overwrite_the_shortcut():
    x = torch.full((1, 4, 1, 1), -1.0)
    out = without_batch_norm(TheirPreActBlock())(x)
    assert torch.equal(out, x)
    assert torch.equal(x, torch.full((1, 4, 1, 1), -1.0))

"""What the zoo promises: the published sizes, and networks that train."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepscope.models.registry import ZOO, build

OF_IMAGES = [name for name in ZOO if ZOO[name].tokens is None]
# Made small enough to be quick; 64 keeps the last batch norm of the ImageNet layouts above 1x1.
SIDES = {"resnet18_imagenet": 64, "resnet50_imagenet": 64, "mobilenetv2_imagenet": 64}


def on_paper(name: str, **options: int) -> nn.Module:
    """Build without memory: shapes and counts alone."""
    with torch.device("meta"):
        return build(name, classes=options.get("classes", ZOO[name].classes))


def images(name: str) -> torch.Tensor:
    side = SIDES.get(name, 32)
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", OF_IMAGES)
def test_takes_the_shape_it_was_laid_out_for_and_any_number_of_classes(name):
    batch = torch.empty(2, *ZOO[name].input_shape, device="meta")
    assert on_paper(name, classes=7)(batch).shape == (2, 7)


@pytest.mark.parametrize("side", [32, 33, 65, 224, 256])
@pytest.mark.parametrize("name", [name for name in ZOO if name.endswith("_imagenet")])
def test_imagenet_layouts_take_any_size_from_32_up(name, side):
    batch = torch.empty(2, 3, side, side, device="meta")
    assert on_paper(name, classes=10)(batch).shape == (2, 10)


@pytest.fixture(scope="module", params=OF_IMAGES)
def name_and_model(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    """Build each network once, with 10 classes: the largest takes two seconds to draw."""
    torch.manual_seed(0)
    return request.param, build(request.param, classes=10)


def test_a_backward_pass_gives_every_parameter_a_finite_gradient(name_and_model):
    name, model = name_and_model
    model.train()
    batch = images(name)
    loss = nn.functional.cross_entropy(model(batch), torch.tensor([3, 7]))
    torch.autograd.backward(loss)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert bool(parameter.grad.sum().isfinite()), key
    assert torch.equal(batch, images(name)), "the network overwrote its images"


def test_scores_are_the_same_in_both_memory_formats(name_and_model):
    name, model = name_and_model
    # Batch norm by the batch's own numbers: by the untrained ones the deeper networks give every
    # image the same scores, and equal scores would be no evidence.
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    batch = images(name)
    with torch.no_grad():
        contiguous = model(batch)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        channels_last = model(batch.to(memory_format=torch.channels_last))
    assert contiguous.shape == (2, 10)
    assert float((contiguous[0] - contiguous[1]).abs().max()) > 1e-2
    torch.testing.assert_close(channels_last, contiguous, rtol=1e-3, atol=1e-3)

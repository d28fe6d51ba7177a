"""A network that somebody brings and that cannot be trained is refused with the reason."""

from __future__ import annotations

import pytest
from torch import nn

from stepscope.errors import RequestError


def raises(num_classes: int) -> nn.Module:
    raise ValueError("no such weights")


def number(num_classes: int) -> int:
    return 7


def other_images(num_classes: int) -> nn.Module:
    return nn.Linear(10, num_classes)


def no_scores(num_classes: int) -> nn.Module:
    return nn.Flatten()


def frozen(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes).requires_grad_(False))


def without_parameters(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(num_classes))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (raises, "no such weights"),
        (number, "int"),
        (other_images, "fails on images of 3x32x32"),
        (no_scores, r"\(2, 3072\)"),
        (frozen, "no trainable parameter"),
        (without_parameters, "no trainable parameter"),
    ],
)
def test_what_cannot_be_trained_is_a_wrong_request(train, network, said):
    with pytest.raises(RequestError, match=said):
        train(model=f"{__name__}:{network.__name__}")

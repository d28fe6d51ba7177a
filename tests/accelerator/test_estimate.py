"""A network on an accelerator: which layers it has, what they cost, and its peak activation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from stepscope.accelerator import design
from stepscope.accelerator.design import AcceleratorDesign, load_design
from stepscope.accelerator.estimate import estimate_layer, estimate_network
from stepscope.accelerator.layer import Layer
from stepscope.accelerator.mapper import Widths
from stepscope.accelerator.network_shapes import shapes_of
from stepscope.errors import RequestError
from stepscope.models import registry

DESIGN = load_design()


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(4, 8, 3, padding=1)
        self.act = nn.ReLU()
        self.two = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.act(self.one(x))) + x


def test_layers_are_found_with_their_bounds():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=(2, 1), padding=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    found = shapes_of(net, (3, 16, 16), "net")
    assert [each.layer for each in found.layers] == [
        Layer(3, 8, 8, 16, 5, 5, 2, stride_q=1),
        Layer(8, 8, 8, 16, 3, 3, groups=8),
        Layer(8, 10),
    ]
    assert found.free == {"BatchNorm2d": 1, "ReLU": 1, "AdaptiveAvgPool2d": 1, "Flatten": 1}
    assert net.training


def test_activations_are_counted_as_the_course_does():
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    found = shapes_of(plain, (2, 8, 8), "plain")
    # input and output of the convolution; of norm and activation the input alone
    assert (found.peak_activation_bytes, found.peak_at) == ((128 + 256) * 4, "0")
    grouped = shapes_of(nn.Conv2d(4, 4, 3, padding=1, groups=2), (4, 8, 8), "grouped")
    assert grouped.peak_activation_bytes == (256 + 256 // 2) * 4


def test_inside_a_residual_block_its_input_is_held_too():
    found = shapes_of(nn.Sequential(Block()), (4, 8, 8), "block")
    assert found.peak_activation_bytes == (256 + 512 + 256) * 4
    plain = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    assert shapes_of(plain, (4, 8, 8), "plain").peak_activation_bytes == (256 + 512) * 4


def test_resnet18_at_224_is_within_two_percent_of_what_was_published():
    net = registry.build("resnet18_imagenet", classes=1000, norm="batch")
    found = estimate_network(net, (3, 224, 224), "resnet18_imagenet", DESIGN, Widths(8, 16))
    assert found["cycles"] == 18_167_712
    assert found["energy_mj"] == pytest.approx(24.239, rel=0.02)
    assert found["energy_mj"] < 24.239  # the published search was not exhaustive
    assert len(found["layers"]) == 21
    assert found["not_validated"] == []
    for layer in found["layers"]:
        assert sum(layer["energy_uj_by_level"].values()) == pytest.approx(layer["energy_uj"])
        assert 0 < layer["utilization"] <= 0.5  # 8 x 16 of 16 x 16


def test_a_linear_layer_costs_what_the_same_convolution_does():
    linear = estimate_network(nn.Linear(64, 32), (64,), "linear", DESIGN, Widths())
    convolution = estimate_layer(Layer(64, 32), DESIGN, Widths())
    assert linear["cycles"] == convolution["cycles"]
    assert linear["layers"][0]["energy_uj"] == convolution["energy_uj"]


def test_what_cannot_be_mapped_is_named():
    net = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Flatten(), nn.Linear(24, 2))
    found = estimate_network(net, (4, 8), "net", DESIGN, Widths())
    [named] = found["not_estimated"]
    assert named == "0 (Conv1d) has weights, but its kind is not estimated"


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (nn.ReLU(), "no convolution and no linear"),
        (nn.Conv2d(3, 4, 9), "fails on a sample of 3x4x4"),
    ],
)
def test_a_network_with_nothing_to_estimate_or_that_fails_is_refused(net, said):
    with pytest.raises(RequestError, match=said):
        shapes_of(net, (3, 4, 4), "net")


def test_a_mapping_reads_as_a_loop_nest():
    nest = estimate_layer(Layer(64, 64, 32, 32, 3, 3), DESIGN, Widths(8, 16))["mapping"]
    assert nest[0] == "# DRAM"
    assert nest[-1].strip() == "outputs += weights * inputs"
    loops = [line for line in nest if " in 0.." in line]
    passes = 1
    for line in loops:
        passes *= int(line.rpartition("0..")[2].partition(":")[0])
    assert passes == 64 * 64 * 32 * 32 * 9


def own(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = Path(design.__file__).with_name("simple_weight_stationary.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_somebodys_own_design_is_read_in_the_same_form(tmp_path):
    mine = load_design(str(own(tmp_path, ("value = 128.0", "value = 256.0"), ('"simple', '"my'))))
    assert isinstance(mine, AcceleratorDesign)
    assert (mine.name, mine.energy.dram) == ("my_weight_stationary", 256.0)
    layer = Layer(64, 64, 8, 8, 3, 3)
    dearer, given = (estimate_layer(layer, each, Widths())["energy_uj"] for each in (mine, DESIGN))
    assert dearer > given


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("value = 192", "value = 0", r"\[scratchpad\] words"),
        ("value = 2.20035", 'value = "much"', r"\[energy_pj\] mac"),
        ("[buffer]", "[store]", r"\[buffer\] words"),
        ("[array]", "[array", "cannot read"),
    ],
)
def test_a_design_that_does_not_read_is_refused(tmp_path, old, new, said):
    with pytest.raises(RequestError, match=said):
        load_design(str(own(tmp_path, (old, new))))


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 10**5, "\0" * 2**25, None], ids=["deep", "large", "missing"]
)
def test_a_design_that_nobody_wrote_is_refused(tmp_path, text):
    file = tmp_path / "design.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=r"wanted simple_weight_stationary or .*cannot read"):
        load_design(str(file))

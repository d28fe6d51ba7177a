"""Networks whose names say all of their design."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.models import registry
from stepscope.models.efficient_design import (
    ACTIVATIONS,
    BLOCKS,
    HEADS,
    KERNELS,
    POOLS,
    PREFIX,
    EfficientDesign,
    read_design,
)
from stepscope.models.model_summary import count_network


@st.composite
def designs(draw, widest=4096, deepest=32):
    stages, mirror = draw(st.integers(1, 6)), draw(st.booleans())

    def one_a_stage(numbers):
        return st.lists(numbers, min_size=stages, max_size=stages).map(tuple)

    widths = st.integers(1, widest // 2).map(lambda half: 2 * half)
    stems = ["s2d2", "s2d4", "conv1", "conv2", "conv4"]
    stem = draw(st.sampled_from(stems[: 3 if mirror else None]))
    first, *later = draw(one_a_stage(st.integers(1, deepest)))
    return EfficientDesign(
        draw(one_a_stage(widths if mirror else st.integers(1, widest))),
        (first - draw(st.sampled_from([0, first])), *later),
        stem=stem[:-1],
        stem_factor=int(stem[-1]),
        kernel=draw(st.sampled_from(KERNELS)),
        block=draw(st.sampled_from(BLOCKS)),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        squeeze=draw(st.sampled_from((0, 1, 8, 99))),
        pool=draw(st.sampled_from([each for each in POOLS if not mirror or each != "stride"])),
        head=draw(st.sampled_from(HEADS)),
        mirror=mirror,
        dropout_percents=draw(st.just(()) | one_a_stage(st.integers(0, 99)).filter(any)),
    )


@given(designs(), st.randoms())
def test_a_design_is_read_as_it_was_written_in_any_order(design, random):
    assert read_design(design.name) == design
    parts = design.name.removeprefix(PREFIX).split("_")
    random.shuffle(parts)
    assert read_design(PREFIX + "_".join(parts)) == design


@given(st.text(alphabet="swdk2470_-convplaisr", max_size=30))
def test_whatever_is_written_is_a_design_or_refused_in_words(text):
    with contextlib.suppress(RequestError):
        design = read_design(PREFIX + text)
        assert read_design(design.name) == design


@settings(max_examples=25, deadline=None)
@given(designs(widest=20, deepest=2))
def test_every_design_can_be_built_and_gives_a_score_a_class(design):
    model = registry.build(design.name, classes=7)
    with torch.no_grad():
        assert model.eval()(torch.rand(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "is not part"),
        ("net", "'net' is not part"),
        ("d1-1", "no widths"),
        ("w16_w32", "repeats the"),
        ("w16_plain_residual", "repeats the"),
        ("w16-32_d1", "2 widths and 1 depths"),
        ("w16-32_d1-0", "1 to 32 blocks"),
        ("w0", "from 1 to 4,096"),
        ("w99999", "from 1 to 4,096"),
        ("s2d1_w16", "a stem is"),
        ("conv3_w16", "a stem is"),
        ("w16_k4", "kernels are 1, 3, 5, 7, found 4"),
        ("w1-1-1-1-1-1-1", "at most 6 stages"),
        ("w16_se0", "'se0' is not part"),
        ("w16_relu_silu", "repeats the"),
        ("w16_drop100", "'drop100' is not part"),
        ("w16-32-48_drop10-20", "2 for 3 stages"),
        ("w16_mirror", "needs max or avg"),
        ("conv2_w16_mirror_max", "needs max or avg"),
        ("s2d2_w15_mirror_max", "even widths"),
        ("W16", "'W16' is not part"),
    ],
)
def test_a_name_that_is_no_design_is_refused_with_the_reason(written, why):
    with pytest.raises(RequestError, match=why):
        registry.check_name(PREFIX + written)


def test_a_stage_halves_both_sides_however_it_does_so():
    for pool in POOLS:
        stages = registry.build(f"efficient:s2d2_w8-8-8_d0-1-1_{pool}", classes=2).stages
        assert stages(torch.rand(1, 8, 16, 16)).shape == (1, 8, 4, 4)


def test_space_to_depth_loses_no_pixel():
    stem = registry.build("efficient:s2d4_w8", classes=2).stem
    image = torch.rand(1, 3, 32, 32)
    put_beside = stem[0](image)
    assert put_beside.shape == (1, 48, 8, 8)
    assert torch.equal(put_beside.flatten().sort().values, image.flatten().sort().values)


@pytest.mark.parametrize(
    ("block", "convolution"), [("residual", "second"), ("skip", "convolution")]
)
def test_residual_and_skip_blocks_add_their_input(block, convolution):
    *_, made = registry.build(f"efficient:w8_d1_{block}", classes=2).eval().stages[0]
    for parameter in made.get_submodule(convolution).parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.rand(1, 8, 4, 4)
    with torch.no_grad():
        assert torch.equal(made(x), x)


def test_a_skip_block_needs_an_input_of_its_shape():
    _, widening, _ = registry.build("efficient:w8-16_d1-2_skip_max", classes=2).stages[1]
    assert isinstance(widening, torch.nn.Sequential)


def test_a_gate_weighs_whole_channels_by_their_means():
    gate = registry.build("efficient:w16_d0_se8", classes=2).stem[0][-1]
    x = torch.rand(2, 16, 4, 4)
    with torch.no_grad():
        weights = gate(x) / x
        moved = gate(x.roll(1, dims=-1))
    assert ((weights > 0) & (weights < 1)).all()
    torch.testing.assert_close(weights, weights[:, :, :1, :1].expand_as(weights))
    torch.testing.assert_close(moved, gate(x).roll(1, dims=-1))


def test_the_last_layer_sees_means_or_means_and_what_is_largest():
    x = torch.rand(2, 8, 4, 4)
    means, largest = x.mean((2, 3)), x.amax((2, 3))
    for head, wanted in (("mean", means), ("meanmax", means + largest)):
        pool = registry.build(f"efficient:w8_{head}", classes=2).pool
        torch.testing.assert_close(pool(x), wanted)


def test_dropout_is_after_the_stages_that_ask_for_it():
    def dropped(name):
        modules = registry.build(name, classes=2).modules()
        return [each.p for each in modules if isinstance(each, torch.nn.Dropout)]

    assert dropped("efficient:w8-8-8_drop0-10-20") == [0.1, 0.2]
    assert dropped("efficient:w8-8-8_drop20") == [0.2]


@pytest.mark.parametrize(
    "name",
    [
        "efficient:s2d2_w8-12_d0-2_skip_mirror_max",
        "efficient:s2d4_w8-12_d1-1_k5_mirror_avg",
        "efficient:s2d2_w8-12_d0-2_skip_silu_se4_mirror_max_meanmax",
        "efficient:conv1_w8-12_d1-2_residual_mirror_max_drop10",
    ],
)
def test_a_mirrored_network_sees_an_image_and_its_mirror_image_alike(name):
    model = registry.build(name, classes=3)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model.train()(images)
    model.eval()
    for module in model.modules():  # as if it had seen as many of both
        if isinstance(module, torch.nn.BatchNorm2d):
            for kept in (module.running_mean, module.running_var):
                kept.copy_(sum(kept.chunk(2)).repeat(2) / 2)
    with torch.no_grad():
        scores, mirrored = model(images), model(images.flip(-1))
        assert scores.std() > 1e-4
        torch.testing.assert_close(scores, mirrored)
        assert not torch.allclose(scores, model(images.flip(-2)))  # upside down is something else


def test_a_mirrored_network_learns_half_of_the_weights_and_costs_the_same():
    plain, mirrored = (
        registry.build(f"efficient:s2d2_w16-32_d0-2{more}_max", classes=4)
        for more in ("", "_mirror")
    )
    convolutions = [
        sum(each.weight.numel() for each in model.modules() if isinstance(each, torch.nn.Conv2d))
        for model in (plain, mirrored)
    ]
    assert convolutions[0] == 2 * convolutions[1]
    counted = [count_network(model, (3, 32, 32), "x")["macs"] for model in (plain, mirrored)]
    assert counted[0] - counted[1] == 16 * 4  # of the last layer, which has half as many features

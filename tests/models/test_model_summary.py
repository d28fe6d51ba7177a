"""A network counted: by hand where it is small, against what is published where it is known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepscope.errors import RequestError
from stepscope.models import registry
from stepscope.models.model_summary import count_network, optimizer_state
from stepscope.records.types import LayerCounts, NetworkCounts

FLOAT = 4
MB = 2**20


def count(model: nn.Module, *shape: int) -> NetworkCounts:
    return count_network(model, shape, "mine")


class Net(nn.Module):
    """Some parts, and a forward pass that the test hands over."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = forward

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def layer(*values: object) -> dict[str, object]:
    return dict(zip(LayerCounts.__annotations__, values, strict=True))


def by_name(network: NetworkCounts) -> dict[str, LayerCounts]:
    return {layer["name"]: layer for layer in network["layers"]}


# --- by hand --------------------------------------------------------------------------------------


def test_two_layers_are_what_paper_says():
    network = count(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False)), 3)
    assert network["layers"] == [
        layer("(Sequential)", "Sequential", 1, [2], 0, 0, 0),
        layer("0", "Linear", 1, [5], 3 * 5 + 5, 3 * 5, 3 * FLOAT),  # keeps its input
        layer("1", "Tanh", 1, [5], 0, 0, 5 * FLOAT),  # keeps its output,
        layer("2", "Linear", 1, [2], 5 * 2, 5 * 2, 0),  # which the next one keeps too
    ]
    assert network["parameters"] == network["trainable_parameters"] == network["gradients"] == 30
    assert network["macs"] == 25
    assert network["kept_bytes"] == 8 * FLOAT
    assert network["convolutions"] == 0
    assert (network["last_layer"], network["last_layer_input"]) == ("2", [5])
    assert network["input_mb"] == 3 * FLOAT / MB
    assert network["forward_backward_mb"] == 2 * FLOAT * (5 + 2) / MB, "two leaves with parameters"
    assert network["parameters_mb"] == 30 * FLOAT / MB
    assert network["total_mb"] == (3 + 2 * 7 + 30) * FLOAT / MB
    assert network["not_counted"] == []


def test_a_convolution_and_a_batch_norm_are_what_paper_says():
    network = count(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), 3, 6, 6)
    conv, norm, relu = network["layers"][1:]
    out = 4 * 4 * 4
    assert conv == layer("0", "Conv2d", 1, [4, 4, 4], 4 * 27 + 4, out * 27, 3 * 36 * FLOAT)
    # Its input, and of two samples together a mean and a deviation a channel.
    assert norm == layer("1", "BatchNorm2d", 1, [4, 4, 4], 8, 0, out * FLOAT + 2 * 4 * FLOAT // 2)
    assert relu["kept_bytes"] == out * FLOAT
    assert network["convolutions"] == 1
    assert network["last_layer"] == "1"


def test_a_block_counts_in_torchsummarys_figure_and_the_network_itself_does_not():
    def residual(inner: nn.Module) -> Net:
        return Net(lambda net, x: net.inner(x) + x, inner=inner)

    block = residual(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    network = count(residual(nn.Sequential(block, nn.Identity(), nn.Linear(4, 4))), 4)
    assert network["forward_backward_mb"] == 2 * FLOAT * (4 + 4 + 4) / MB
    assert network["macs"] == 16 + 16
    assert by_name(network)["inner.0"] == layer("inner.0", "Net", 1, [4], 0, 0, 0)


def test_a_layer_called_three_times_has_its_parameters_once_and_the_rest_three_times():
    def again(net: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = net.layer(x).tanh()
        return x

    network = count(Net(again, layer=nn.Linear(4, 4)), 4)
    layer = by_name(network)["layer"]
    assert (layer["calls"], layer["parameters"], layer["macs"]) == (3, 20, 48)
    assert network["kept_bytes"] == 4 * 4 * FLOAT, "the input and what each tanh made"
    assert network["forward_backward_mb"] == 2 * FLOAT * 12 / MB


def test_a_shared_parameter_counts_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    network = count(model, 4)
    assert [layer["parameters"] for layer in network["layers"]] == [0, 16, 0]
    assert network["parameters"] == network["gradients"] == 16
    assert network["macs"] == 32


# --- against what is published --------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet18() -> NetworkCounts:
    return count_network(registry.build("resnet18", classes=10), (3, 32, 32), "resnet18")


def test_resnet18_has_the_published_figures(resnet18):
    kinds = ("parameters", "trainable_parameters", "gradients")
    assert {resnet18[kind] for kind in kinds} == {11_173_962}
    assert resnet18["convolutions"] == 20
    assert (resnet18["last_layer"], resnet18["last_layer_input"]) == ("classifier", [512])
    assert by_name(resnet18)["stages"]["output_shape"] == [512, 4, 4]
    assert resnet18["macs"] == 555_422_720
    assert sizes(resnet18) == [0.01, 11.25, 42.63, 53.89]
    assert resnet18["not_counted"] == []


def test_resnet18_without_batch_norm_has_the_published_figures():
    model = registry.build("resnet18", classes=10, norm="none")
    network = count_network(model, (3, 32, 32), "resnet18")
    assert network["parameters"] == network["gradients"] == 11_164_362
    assert network["convolutions"] == 20
    assert sizes(network) == [0.01, 6.56, 42.59, 49.16]


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("lenet", 651_720),  # 28·28·6·75 + 10·10·16·150 + 400·120 + 120·84 + 84·10
        ("resnet18_imagenet", 1_814_073_344),  # as published with the network
    ],
)
def test_multiply_adds_are_those_on_paper_and_in_print(name, macs):
    entry = registry.ZOO[name]
    model = registry.build(name, classes=entry.classes)
    assert count_network(model, entry.input_shape, name)["macs"] == macs


def sizes(network: NetworkCounts) -> list[float]:
    every = ("input_mb", "forward_backward_mb", "parameters_mb", "total_mb")
    return [round(value, 2) for name, value in network.items() if name in every]


@pytest.mark.parametrize("name", [name for name in registry.ZOO if "imagenet" not in name])
def test_of_every_network_of_the_zoo_all_is_counted_and_the_columns_add_up(name):
    entry = registry.ZOO[name]
    model = registry.build(name, classes=entry.classes)
    network = count_network(model, entry.input_shape, name, entry.tokens)
    assert network["not_counted"] == []
    parameters = sum(each.numel() for each in model.parameters())
    assert network["gradients"] == network["parameters"] == parameters
    assert network["convolutions"] == sum(isinstance(each, nn.Conv2d) for each in model.modules())
    adds_up(network)


def adds_up(network: dict[str, Any]) -> None:
    for column in ("parameters", "macs", "kept_bytes"):
        assert sum(layer[column] for layer in network["layers"]) == network[column]


# --- against autograd itself ----------------------------------------------------------------------


def test_what_is_kept_is_what_autograd_saves_of_the_whole_network(resnet18):
    model = registry.build("resnet18", classes=10)
    alive: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        alive[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(torch.zeros(2, 3, 32, 32))
    for own in (*model.parameters(), *model.buffers()):
        alive.pop(own.untyped_storage().data_ptr(), None)
    output.sum().backward()
    assert resnet18["kept_bytes"] == sum(alive.values()) // 2


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_function_multiplies_as_often_as_its_layer(data):
    groups = data.draw(st.sampled_from([1, 2]))
    taken, made = (groups * data.draw(st.integers(1, 3)) for _ in range(2))
    kernel, stride = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    layer_type, function = data.draw(
        st.sampled_from(
            [(nn.Conv2d, F.conv2d), (nn.ConvTranspose2d, F.conv_transpose2d), (nn.Linear, F.linear)]
        )
    )
    options: dict[str, Any] = {}
    if layer_type is nn.Linear:
        layer = nn.Linear(taken, made)
        shape: tuple[int, ...] = (5, taken)
    else:
        options = {"stride": stride, "groups": groups}
        layer = layer_type(taken, made, kernel, **options)
        shape = (taken, 5, 5)

    calls = Net(lambda net, x: function(x, net.weight, **options), weight=layer.weight)
    assert count(calls, *shape)["macs"] == count(layer, *shape)["macs"] > 0


# --- networks of every kind -----------------------------------------------------------------------


def functions(function: Callable[[Tensor, Tensor], Tensor], *weight: int) -> Net:
    """Make a network that computes by a function of its input and a weight."""
    parameter = nn.Parameter(torch.zeros(weight))
    return Net(lambda net, x: function(x, net.weight), weight=parameter)


@pytest.mark.parametrize(
    ("function", "weight", "wanted"),
    [
        (lambda x, w: x @ w, (6, 7), 4 * 6 * 7),
        (lambda x, w: torch.einsum("bij,jk->bik", x, w), (6, 7), 4 * 6 * 7),
        (lambda x, w: torch.stack([each @ w for each in x]), (6,), 4 * 6),
        (lambda x, w: torch.baddbmm(w, x, x.mT), (2, 4, 4), 4 * 6 * 4),
        (lambda x, w: F.scaled_dot_product_attention(x, x, x + w), (6,), 2 * 4 * 4 * 6),
        (lambda x, w: x * w + w.exp(), (6,), 0),
    ],
)
def test_functions_are_counted_for_the_module_that_calls_them(function, weight, wanted):
    network = count(nn.Sequential(functions(function, *weight)), 4, 6)
    assert by_name(network)["0"]["macs"] == network["macs"] == wanted
    assert network["not_counted"] == []


def test_a_convolution_by_a_function_is_counted_and_told_of():
    network = count(nn.Sequential(functions(F.conv2d, 5, 3, 1, 1)), 3, 2, 2)
    assert network["macs"] == 5 * 4 * 3
    assert network["convolutions"] == 0
    [told] = network["not_counted"]
    assert told.startswith("0 (Net) calls a convolution as a function")


def test_what_cannot_be_counted_is_named_and_is_not_zero():
    own = functions(lambda x, w: torch.linalg.inv(x.mT @ x + w.exp()), 4)
    pair = nn.Bilinear(4, 4, 2)
    network = count(Net(lambda net, x: net.pair(x, x) + net.own(x).sum(), pair=pair, own=own), 4)
    assert by_name(network)["pair"]["macs"] is None
    assert by_name(network)["own"]["macs"] is None
    assert network["macs"] == 0
    assert [line.partition(":")[0] for line in network["not_counted"]] == [
        "multiply-adds of pair (Bilinear)",
        "multiply-adds of own (Net)",
    ]
    assert "linalg_inv" in network["not_counted"][1]


def test_what_was_never_called_is_named_once_and_its_parameters_are_in_the_total():
    used = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    spare = nn.Sequential(nn.Linear(4, 1), nn.ReLU())
    network = count(Net(lambda net, x: net.used[0](x), used=used, spare=spare), 4)
    assert network["parameters"] == network["trainable_parameters"] == 20 + 20 + 5
    assert network["gradients"] == 20
    assert by_name(network)["spare.0"] == layer("spare.0", "Linear", 0, None, 5, 0, 0)
    assert network["not_counted"] == [
        "used.1 (Linear) was never called; it has 20 parameters",
        "spare (Sequential) was never called; it has 5 parameters",
        "gradients of 25 trainable parameters: the output does not depend on "
        "used.1.weight, used.1.bias, spare.0.weight, spare.0.bias",
    ]
    adds_up(network)


def test_frozen_layers_are_parameters_and_neither_trained_nor_kept():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    network = count(model, 4)
    assert network["parameters"] == 30
    assert network["trainable_parameters"] == network["gradients"] == 10
    assert network["kept_bytes"] == 4 * FLOAT, "the input of the last layer alone"
    assert network["not_counted"] == []


def test_attention_and_transformer_layers_are_counted_through_their_parts():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    network = count(model, 5, 8)
    attention = 4 * 5 * 8 * 8 + 2 * 5 * 5 * 8
    assert network["macs"] == attention + 2 * 5 * 8 * 16
    assert network["not_counted"] == []
    assert network["parameters"] == sum(each.numel() for each in model.parameters())
    adds_up(network)


def test_lazy_layers_and_spectral_norm_have_their_weights_left_out_of_what_is_kept():
    lazy = count(nn.Sequential(nn.LazyLinear(5)), 3)
    assert (lazy["parameters"], lazy["kept_bytes"]) == (20, 3 * FLOAT)
    normed = count(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 5))), 3)
    assert normed["parameters"] == normed["gradients"] == 20
    assert by_name(normed)["0"]["macs"] == 15


def test_recomputed_blocks_keep_their_input_and_nothing_inside():
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    recomputed = Net(lambda net, x: checkpoint(net.inner, x, use_reentrant=False), inner=inner)
    network = count(nn.Sequential(recomputed), 4)
    assert by_name(network)["0"]["kept_bytes"] == network["kept_bytes"] == 4 * FLOAT
    assert network["macs"] == 32
    assert network["gradients"] == network["parameters"] == 40


def test_a_compiled_network_is_counted_as_it_was_written():
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    network = count(torch.compile(plain, backend="eager"), 4)
    assert by_name(network)["0"]["macs"] == network["macs"] == 16
    in_place = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    in_place[0].compile(backend="eager")
    assert count(in_place, 4)["macs"] == 16


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_is_inside_a_scripted_module_counts_for_its_caller():
    network = count(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU()), 4)
    assert network["parameters"] == network["gradients"] == 20
    assert any("is scripted" in line for line in network["not_counted"])


def test_nothing_of_the_looking_is_left_in_the_network():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count(model, 4)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(each.grad is None for each in model.parameters())


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_network_that_fails_is_answered_with_the_layer_and_the_reason():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Linear(7, 2))
    with pytest.raises(RequestError) as refused:
        count(model, 3, 6, 6)
    assert "mine fails on an input of 3x6x6 in 1 (Linear)" in str(refused.value)
    assert "cannot be multiplied" in str(refused.value)
    assert "--input" in str(refused.value)
    assert not model[1]._forward_hooks


def test_a_network_that_catches_the_failure_of_a_part_goes_on():
    def try_both(net: Any, x: Tensor) -> Any:
        try:
            return net.wrong(x)
        except RuntimeError:
            return net.right(x)

    careful = Net(try_both, wrong=nn.Sequential(nn.Linear(3, 3)), right=nn.Linear(4, 4))
    network = count(nn.Sequential(careful, nn.Linear(4, 2)), 4)
    assert by_name(network)["1"]["macs"] == 8
    assert network["macs"] == 16 + 8


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        *(
            (lambda given_back=given_back: given_back, f"returns {kind} .* wanted a tensor")
            for given_back, kind in ((None, "NoneType"), (7, "int"), ("word", "str"), ([], "list"))
        ),
        (lambda: sys.exit(3), "SystemExit: 3"),
    ],
)
def test_a_network_that_gives_no_tensor_or_exits_is_refused(answer, said):
    with pytest.raises(RequestError, match=said):
        count(Net(lambda net, x: answer()), 4)


def test_the_state_of_an_optimiser_grows_with_the_gradients():
    state = optimizer_state(torch.optim.Adam, gradients=1000)
    assert state == {"values_per_parameter": 2, "bytes": 2 * 1000 * FLOAT}

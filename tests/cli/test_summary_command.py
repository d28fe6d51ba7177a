"""`stepscope summary` from outside: the published figures, own models, every wrong request."""

import pytest

OWN = """\
import torch
from torch import nn

print("importing")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 10)

    def forward(self, x):
        print("forward")
        return self.fc(x.flatten(1))

def net():
    return Net()

def headed(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes))
"""


@pytest.fixture
def mine(stepscope):
    (stepscope.folder / "mine.py").write_text(OWN)
    return stepscope


def test_resnet18_as_one_object(stepscope):
    found = stepscope.succeed("summary", "resnet18", "--json").json
    assert (found["model"], found["norm"], found["classes"]) == ("resnet18", "batch", 10)
    assert found["input"] == [3, 32, 32]
    assert found["parameters"] == 11_173_962
    values = {name: each["values_per_parameter"] for name, each in found["optimizer_state"].items()}
    assert values == {
        "sgd": 0,
        "sgd with momentum": 1,
        "adagrad": 1,
        "adadelta": 2,
        "rmsprop": 1,
        "rmsprop with momentum": 2,
        "adam": 2,
        "adamw": 2,
    }
    assert found["optimizer_state"]["adam"]["bytes"] == 2 * 4 * 11_173_962


def test_resnet18_without_batch_norm_on_a_terminal(stepscope):
    answer = stepscope.succeed("summary", "resnet18", "--norm", "none")
    for figure in ("without batch norm", "11,164,362", "6.56", "42.59", "49.16", "555,422,720 MAC"):
        assert figure in answer.out
    assert "(all trainable)" in answer.out
    assert "convolutions: 20" in answer.out
    assert "input of the last layer, classifier: 512" in answer.out
    assert "not counted" not in answer.out


def test_another_input_and_another_number_of_classes(stepscope):
    found = stepscope.succeed(
        "summary", "resnet18", "--input", "3, 64,64", "--classes", 7, "--json"
    ).json
    assert found["input"] == [3, 64, 64]
    assert found["classes"] == 7
    assert found["layers"][0]["output_shape"] == [7]
    assert found["last_layer_input"] == [512]


def test_a_model_of_ones_own_is_counted_and_what_it_prints_is_not_in_the_way(mine):
    answer = mine.succeed("summary", "mine:net", "--input", "12", "--json")
    assert answer.json["parameters"] == 130
    assert answer.json["macs"] == 120
    assert answer.json["layers"][0]["name"] == "(Net)"
    assert "importing" in answer.err
    assert "forward" in answer.err
    headed = mine("summary", "mine:headed", "--input", "3,2,2", "--classes", 4, "--json")
    assert headed.json["parameters"] == 52


@pytest.mark.parametrize(
    "args",
    [("--input", "3,999999,999999"), ("--classes", "999999999")],
)
def test_what_cannot_fit_into_any_memory_ends_with_4(stepscope, args):
    assert stepscope("summary", "lenet", *args).is_refused(4, "does not fit", "smaller --input")

"""What a model's name may be, checked without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.errors import MissingExtraError, RequestError
from stepscope.models import registry


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_of_models_and_data_sets_need_no_library():
    loaded = run_python(
        "import sys, stepscope.models.pretrained\n"
        "import stepscope.data.datasets.text, stepscope.data.datasets.cifar_download\n"
        "from stepscope.models import registry\n"
        "for name in [*registry.ZOO, 'package.module:factory']:\n"
        "    registry.check_name(name)\n"
        "libraries = {'torch', 'PIL', 'transformers', 'tokenizers', 'safetensors'}\n"
        "print(libraries & {*sys.modules})"
    )
    assert loaded == "set()"


def test_building_without_torch_names_the_extra_to_install():
    message = run_python(
        "import sys\n"
        # None in sys.modules makes an import fail as if nothing were installed.
        "sys.modules['torch'] = None\n"
        "from stepscope.errors import MissingExtraError\n"
        "from stepscope.models import registry\n"
        "try:\n"
        "    registry.build('lenet', classes=10)\n"
        "except MissingExtraError as error:\n"
        "    print(error)"
    )
    assert message == str(MissingExtraError("building a model", "torch", "train"))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("resnet81", "resnet18"),
        ("ResNet-18", "resnet18"),
        ("mobilenet-v2", "mobilenetv2"),
        ("preactresnet18", "preact_resnet18"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(wrong, right):
    with pytest.raises(RequestError, match=rf"unknown model '{wrong}'.*Did you mean '{right}'\?"):
        registry.check_name(wrong)


@pytest.mark.parametrize("name", ["", "zzzzzz"])
def test_a_name_like_no_other_lists_the_zoo_and_the_other_form(name):
    with pytest.raises(
        RequestError, match=r"Known: efficient-accurate, .*lenet, .*'package\.module:factory'"
    ):
        registry.check_name(name)


@pytest.mark.parametrize("name", ["net:make", "package.module:factory", "a.b.c:Net.small"])
def test_a_model_of_ones_own_is_two_dotted_names_and_a_colon(name):
    registry.check_name(name)


@pytest.mark.parametrize(
    "name",
    [":", "net:", ":make", "net::make", "a:b:c", "nets/small.py:make", "net:make()", "a..b:c",
     "1net:make", "net:make ", "class:make"],
)  # fmt: skip
def test_anything_else_with_a_colon_is_refused_with_an_example(name):
    with pytest.raises(RequestError, match=r"'nets\.small:make_net'"):
        registry.check_name(name)


def test_a_network_without_classes_is_refused():
    with pytest.raises(RequestError, match="at least 1 class, got 0"):
        registry.build("lenet", classes=0)

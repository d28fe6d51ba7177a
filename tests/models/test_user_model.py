"""What happens with a person's own model, when it is right and when it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from torch import nn

from stepscope.errors import RequestError
from stepscope.models.registry import build

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module into an otherwise empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write_module(code: str, file: str = "theirs.py") -> Path:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(code))
        return path

    yield write_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("signature", "scores"),
    [
        ("num_classes", 7),
        ("num_classes=10", 7),
        ("*, width=3, num_classes=10", 7),
        ("classes=10", 7),
        ("**kwargs", 7),
        ("", 5),
        ("width=3", 5),
    ],
)
def test_the_factory_is_told_the_classes_if_it_takes_them(write, signature, scores):
    write(f"""
        from torch import nn
        def make({signature}):
            found = locals()
            found = found.get("kwargs", found)
            return nn.Linear(3, found.get("num_classes", found.get("classes", 5)))
    """)
    model = build("theirs:make", classes=7)
    assert isinstance(model, nn.Linear)
    assert model.out_features == scores


def test_a_class_and_a_dotted_factory_in_a_package_are_factories_too(write):
    write("", "nets/__init__.py")
    write(
        """
        from torch import nn
        class Net(nn.Linear):
            def __init__(self, num_classes):
                super().__init__(3, num_classes)
            @classmethod
            def make(cls, classes):
                return cls(classes)
        """,
        "nets/small.py",
    )
    for name in ("nets.small:Net", "nets.small:Net.make"):
        assert build(name, classes=7).get_parameter("bias").shape == (7,)


def test_the_batch_norm_of_ones_own_model_can_be_taken_out(write):
    write("from torch import nn\ndef make(): return nn.Sequential(nn.BatchNorm2d(3))")
    model = build("theirs:make", classes=7, norm="none")
    assert isinstance(model.get_submodule("0"), nn.Identity)


def test_modules_imported_only_when_the_network_is_made_are_found(write):
    write("from torch import nn\ndef layer(): return nn.Linear(3, 4)", "theirs_parts.py")
    write("def make():\n    import theirs_parts\n    return theirs_parts.layer()")
    assert isinstance(build("theirs:make", classes=7), nn.Linear)


LAZY = """\
def __getattr__(name):
    if name == "make":
        raise RuntimeError("lazy")
    raise AttributeError(name)
"""
INSIDE_TORCH = """\
from torch import nn
def make(num_classes):
    return nn.Conv2d(3, 4, 1, groups=2)
"""


@pytest.mark.parametrize(
    ("code", "factory", "words"),
    [
        # the module
        ("", "nowhere:make", ("No module named 'nowhere'", "Looked in {folder}", "the spelling")),
        ("def make(): ...", "theirs.py:make", ("Leave out '.py'",)),
        (
            "x = 1\ny = 2\nraise ValueError('no such width')\n",
            "theirs:make",
            ("raised ValueError: no such width (at {path}:3)", "python -c 'import theirs'"),
        ),
        (
            "import torchvisionn",
            "theirs:make",
            ("cannot import the module", "No module named 'torchvisionn' (at {path}:1)"),
        ),
        ("x = 1\ndef make(:\n", "theirs:make", ("SyntaxError: ", " (at {path}:2)")),
        (
            "import sys\nsys.exit('usage: train.py')",
            "theirs:make",
            ("SystemExit: usage: train.py (at {path}:2)",),
        ),
        # the factory in it
        (
            "from torch.nn import Linear\nmake_nets = 3\ndef make_net(): ...",
            "theirs:make_nett",
            ("module 'theirs' ({path}) has no 'make_nett'", "Did you mean 'make_net'?"),
        ),
        ("width = 3", "theirs:make", ("has no 'make'. It defines no function or class.",)),
        (
            "class Net:\n    def small(self): ...",
            "theirs:Net.smal",
            ("the class Net", "Did you mean 'small'?"),
        ),
        (LAZY, "theirs:make", ("looking up 'make' raised RuntimeError: lazy (at {path}:3)",)),
        ("make = 3", "theirs:make", ("make is an int, not a function or class",)),
        (
            "from torch import nn\nnet = nn.Linear(3, 4)",
            "theirs:net",
            ("already a network (a Linear)", "or the class"),
        ),
        # its call
        (
            "def make(width, num_classes): ...",
            "theirs:make",
            ("(width, num_classes)", "missing a required argument: 'width'"),
        ),
        (
            INSIDE_TORCH,
            "theirs:make",
            ("make(num_classes=7) raised ValueError: in_channels must be div", "(at {path}:3)"),
        ),
        ("def make(): return None", "theirs:make", ("a torch.nn.Module", "it returned None.")),
        ("def make(): return [1]", "theirs:make", ("a torch.nn.Module", "it returned a list.")),
        (
            "from torch import nn\ndef make(): return nn.Linear",
            "theirs:make",
            ("a torch.nn.Module", "it returned the class Linear."),
        ),
    ],
)
def test_what_is_wrong_is_told_with_the_line_of_the_users_code(write, code, factory, words):
    path = write(code)
    with pytest.raises(RequestError) as caught:
        build(factory, classes=7)
    message = str(caught.value)
    assert f"model '{factory}'" in message
    assert "Traceback" not in message
    misused = ("not a function", "already a network", "it returned")
    assert (caught.value.__cause__ is None) == any(words in message for words in misused)
    for expected in words:
        assert expected.format(path=path, folder=path.parent) in message

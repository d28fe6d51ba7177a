"""What happens with a person's own model, when it is right and when it is not."""

from __future__ import annotations

import re
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


def refusal(name: str) -> str:
    """Return what a person reads."""
    with pytest.raises(RequestError) as caught:
        build(name, classes=7)
    message = str(caught.value)
    assert f"model '{name}'" in message
    assert "Traceback" not in message
    return message


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


def test_a_missing_module_says_where_it_was_sought(write, tmp_path):
    message = refusal("nowhere:make")
    assert "No module named 'nowhere'" in message
    assert f"Looked in {tmp_path}" in message
    assert "Check the spelling" in message


def test_a_file_in_place_of_a_module_is_told_to_lose_its_ending(write):
    write("def make(): ...")
    assert "Leave out '.py'" in refusal("theirs.py:make")


def test_a_module_that_raises_is_named_with_the_line(write):
    path = write("x = 1\ny = 2\nraise ValueError('no such width')\n")
    message = refusal("theirs:make")
    assert f"raised ValueError: no such width (at {path}:3)" in message
    assert "python -c 'import theirs'" in message


def test_a_module_whose_own_import_is_missing_is_not_called_missing(write):
    path = write("import torchvisionn")
    message = refusal("theirs:make")
    assert "cannot import the module" in message
    assert f"No module named 'torchvisionn' (at {path}:1)" in message


def test_a_syntax_error_is_named_with_its_line(write):
    path = write("x = 1\ndef make(:\n")
    message = refusal("theirs:make")
    assert re.search(rf"SyntaxError: .* \(at {re.escape(str(path))}:2\)", message)


def test_a_script_that_exits_on_import_does_not_end_us(write):
    path = write("import sys\nsys.exit('usage: train.py')")
    assert f"SystemExit: usage: train.py (at {path}:2)" in refusal("theirs:make")


def test_a_missing_factory_suggests_the_nearest_callable(write):
    path = write("from torch.nn import Linear\nmake_nets = 3\ndef make_net(): ...")
    message = refusal("theirs:make_nett")
    assert f"module 'theirs' ({path}) has no 'make_nett'" in message
    assert "Did you mean 'make_net'?" in message


def test_a_module_with_nothing_to_call_says_so(write):
    write("width = 3")
    assert "has no 'make'. It defines no function or class." in refusal("theirs:make")


def test_a_missing_method_is_sought_in_its_class(write):
    write("class Net:\n    def small(self): ...")
    message = refusal("theirs:Net.smal")
    assert "the class Net" in message
    assert "Did you mean 'small'?" in message


def test_a_part_that_fails_when_it_is_looked_up_is_named_with_the_line(write):
    path = write("""\
        def __getattr__(name):
            if name == "make":
                raise RuntimeError("lazy")
            raise AttributeError(name)
    """)
    assert f"looking up 'make' raised RuntimeError: lazy (at {path}:3)" in refusal("theirs:make")


def test_a_factory_that_cannot_be_called_says_what_it_is(write):
    write("make = 3")
    assert "make is an int, not a function or class" in refusal("theirs:make")


def test_a_network_already_made_is_no_factory(write):
    write("from torch import nn\nnet = nn.Linear(3, 4)")
    message = refusal("theirs:net")
    assert "a network already made (a Linear)" in message
    assert "or the class" in message


def test_a_factory_that_needs_more_shows_its_signature(write):
    write("def make(width, num_classes): ...")
    message = refusal("theirs:make")
    assert "(width, num_classes)" in message
    assert "missing a required argument: 'width'" in message


def test_a_factory_that_raises_inside_torch_is_named_with_the_persons_line(write):
    path = write("""\
        from torch import nn
        def make(num_classes):
            return nn.Conv2d(3, 4, 1, groups=2)
    """)
    message = refusal("theirs:make")
    assert "make(num_classes=7) raised ValueError: in_channels must be divisible" in message
    assert f"(at {path}:3)" in message


@pytest.mark.parametrize(
    ("returned", "found"),
    [("None", "None"), ("[1]", "a list"), ("nn.Linear", "the class Linear")],
)
def test_a_factory_that_returns_something_else_says_what(write, returned, found):
    write(f"from torch import nn\ndef make(): return {returned}")
    message = refusal("theirs:make")
    assert "should return a torch.nn.Module" in message
    assert f"it returned {found}." in message


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise KeyError('a')", KeyError),
        ("def make(): raise KeyError('a')", KeyError),
        ("", AttributeError),
        ("def make(width): ...", TypeError),
    ],
)
def test_the_cause_is_chained(write, code, cause):
    write(code)
    with pytest.raises(RequestError) as caught:
        build("theirs:make", classes=7)
    assert isinstance(caught.value.__cause__, cause)

"""The recorded terminal: the script comes from the quickstart, and the picture fetches nothing."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools/record_terminal.py"
    spec = importlib.util.spec_from_file_location("record_terminal", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_is_the_one_of_the_quickstart(tool: ModuleType) -> None:
    script = tool.script_of(tool.PAGE)
    assert script.startswith("# train.py\n")
    ast.parse(script)


def test_the_picture_shows_what_was_printed_and_fetches_no_font(tool: ModuleType) -> None:
    picture = tool.draw("$ stepscope trace train.py\n\x1b[1mcompleted\x1b[0m")
    assert "completed" in picture
    assert "\x1b" not in picture
    assert "@font-face" not in picture

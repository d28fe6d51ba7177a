"""Imports point one way: the arrows of the architecture, read from the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope

SOURCE = Path(stepscope.__file__).parent

BASE = frozenset({"errors", "units", "stats", "user_folders", "written"})

# Which rooms a room may import, beside itself and the base modules. The docs may quote this table.
MAY_IMPORT: dict[str, frozenset[str]] = {
    # the writing side
    "experiments": frozenset(
        {"train", "measure", "data", "models", "hardware", "estimate", "records", "spec"}
        | {"analyze"}  # what the last trial means decides on the next
    ),
    "train": frozenset({"measure", "estimate", "data", "models", "records", "spec"}),
    "measure": frozenset({"hardware", "models", "records", "spec"}),
    "estimate": frozenset({"hardware", "models"}),
    "data": frozenset(),
    "models": frozenset(),
    "hardware": frozenset(),
    # the reading side
    "report": frozenset({"analyze", "records", "spec"}),
    "analyze": frozenset({"records", "spec"}),
    # what both stand on
    "records": frozenset({"spec"}),
    "spec": frozenset(),
    # the doors
    "cli": frozenset(
        {"experiments", "train", "measure", "data", "models", "hardware", "estimate"}
        | {"report", "analyze", "records", "spec"}
    ),
    "__main__": frozenset({"cli"}),
    "library": frozenset({"measure", "hardware", "report", "analyze", "records"}),
    "__init__": frozenset({"library", "records"}),
}

# What knows only the standard library, and what it may know beside it.
STANDARD_LIBRARY_AND: dict[str, frozenset[str]] = {
    **dict.fromkeys(BASE, frozenset()),
    "spec": frozenset({"pydantic", "tomli", "tomllib"}),
    "records": frozenset({"pandas", "polars"}),  # for who asks for a table as a frame
    "analyze": frozenset(),
}

HEAVY = frozenset({"torch", "numpy"})
NOT_HEAVY_WHEN_IMPORTED = frozenset(
    {"spec", "records", "analyze", "report", "hardware", "cli", "experiments"}
    | {"__main__", "__init__"}
)
NEVER_HEAVY = frozenset({"records", "analyze", "report"} | BASE)


def violations(source: str, room: str) -> list[str]:
    """List what the imports in `source`, a module of `room`, do against the tables above."""
    tree = ast.parse(source)
    at_module_level = set(map(id, _module_level(tree.body)))
    found = []
    for node in ast.walk(tree):
        for target in _imported(node):
            top, _, rest = target.partition(".")
            line = f"line {getattr(node, 'lineno', 0)}: {room} imports {target or 'relatively'}"
            if not target:
                found.append(f"{line}: write it in full, arrows are read by name")
            elif top == "stepscope":
                if not _arrow_exists(room, rest.partition(".")[0]):
                    found.append(f"{line}: no such arrow")
            elif top in HEAVY and room in NEVER_HEAVY:
                found.append(f"{line}: it must work without {top}")
            elif top in HEAVY and room in NOT_HEAVY_WHEN_IMPORTED and id(node) in at_module_level:
                found.append(f"{line}: only inside the function that needs it")
            elif (
                room in STANDARD_LIBRARY_AND
                and top not in sys.stdlib_module_names
                and top not in STANDARD_LIBRARY_AND[room]
            ):
                found.append(f"{line}: not of the standard library")
    return found


def _module_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """List the statements that run on import; those under `if TYPE_CHECKING` do not."""
    reached = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        reached.append(node)
        skipped = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for name in ("body", "orelse", "finalbody"):
            if not (skipped and name == "body"):
                reached += _module_level(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            reached += _module_level(handler.body)
    return reached


def _imported(node: ast.AST) -> list[str]:
    """Give the modules that one node imports, in full; a relative import is given as ''."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(level=level) if level:
            return [""]
        case ast.ImportFrom(module="stepscope", names=names):
            # What is not a room or a module (`__version__`) is of the package itself.
            known = {*MAY_IMPORT, *BASE}
            return [f"stepscope.{each.name}" for each in names if each.name in known]
        case ast.ImportFrom(module=str(module)):
            return [module]
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            return [module]
    return []


def _arrow_exists(room: str, target: str) -> bool:
    if room in BASE:
        return target in BASE
    return target in BASE or target in ("", room) or target in MAY_IMPORT[room]


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


MODULES = sorted(SOURCE.rglob("*.py"))


def test_every_import_follows_an_arrow() -> None:
    assert [
        f"{file.relative_to(SOURCE)}, {found}"
        for file in MODULES
        for found in violations(file.read_text(encoding="utf-8"), room_of(file))
    ] == []


def test_every_room_of_the_source_is_in_the_table() -> None:
    assert {room_of(file) for file in MODULES} - BASE <= set(MAY_IMPORT)


def test_the_arrows_go_round_in_no_circle() -> None:
    above: dict[str, frozenset[str]] = dict(MAY_IMPORT)
    while above:
        on_the_ground = {room for room, below in above.items() if not below & set(above)}
        assert on_the_ground, f"a circle among {sorted(above)}"
        above = {room: below for room, below in above.items() if room not in on_the_ground}


@pytest.mark.parametrize(
    ("room", "planted"),
    [
        ("train", "from stepscope.report import terminal"),
        ("train", "import stepscope.hardware.host"),
        ("train", "from stepscope import experiments"),
        ("data", "from stepscope.measure.clock import now_ns"),
        ("models", "from stepscope.data import loader"),
        ("records", "from stepscope.analyze.where_time_goes import summarize"),
        ("analyze", "from stepscope.report.terminal import print_run"),
        ("estimate", "from stepscope.records import reader"),
        ("spec", "from stepscope.records import schema"),
        ("units", "from stepscope.spec import RunSpec"),
        ("measure", "from ..train import loop"),
        ("measure", "def later():\n    from stepscope.train import loop"),
        ("measure", "import importlib\nimportlib.import_module('stepscope.train.loop')"),
        (
            "measure",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stepscope.cli",
        ),
        ("stats", "import numpy as np"),
        ("errors", "import rich"),
        ("records", "def later():\n    import numpy"),
        ("report", "def later():\n    from torch import nn"),
        ("spec", "from torch import nn"),
        ("cli", "import torch.nn.functional as F"),
        ("hardware", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
        ("experiments", "class Loader:\n    import numpy"),
    ],
)
def test_a_planted_violation_is_seen(room: str, planted: str) -> None:
    assert len(violations(planted, room)) == 1


@pytest.mark.parametrize(
    ("room", "fine"),
    [
        ("train", "import torch\nfrom stepscope.measure.clock import now_ns"),
        ("report", "from stepscope.analyze import where_time_goes\nfrom rich.text import Text"),
        ("cli", "from stepscope import __version__\nimport stepscope.report.terminal"),
        ("cli", "def later():\n    import torch"),
        ("hardware", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("spec", "import pydantic\nfrom stepscope.units import parse_bytes"),
        ("data", "import numpy\nfrom stepscope.errors import DataError"),
    ],
)
def test_what_the_arrows_allow_is_not_complained_about(room: str, fine: str) -> None:
    assert violations(fine, room) == []


def test_what_reads_or_supervises_runs_loads_neither_torch_nor_numpy() -> None:
    modules = (
        *("records.reader", "records.folder", "analyze.where_time_goes", "report.terminal"),
        *("report.live", "spec.load", "experiments.single", "cli.main"),
    )
    code = "import importlib, sys\n"
    code += f"for name in {modules}:\n"
    code += "    importlib.import_module(f'stepscope.{name}')\n"
    code += "    if heavy := {'torch', 'numpy'} & {*sys.modules}: sys.exit(f'{name}: {heavy}')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""The shape of the source: which package imports which, unique names, documented paths."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import stepscope

SOURCE = Path(stepscope.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

BASE = frozenset({"errors", "files", "stats", "units"})

# Which packages a package may import, besides itself and the base modules. Each imports only those
# below it; docs/architecture.md shows the same table.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "__main__": frozenset({"cli"}),
    "__init__": frozenset({"api"}),
    "cli": frozenset(
        {"accelerator", "analyze", "data", "doctor", "experiments", "hardware", "models"}
        | {"records", "report", "settings", "supervisor", "train"}
    ),
    "api": frozenset({"analyze", "hardware", "meter", "records", "report", "trace"}),
    "report": frozenset({"analyze", "records", "settings"}),
    "experiments": frozenset(
        {"accelerator", "analyze", "data", "hardware", "memory_forecast", "models", "processes"}
        | {"records", "settings", "supervisor", "train"}
    ),
    "doctor": frozenset({"hardware", "meter", "records", "supervisor", "telemetry"}),
    "supervisor": frozenset(
        {"analyze", "data", "hardware", "memory_forecast", "meter", "models", "processes"}
        | {"records", "settings", "telemetry", "trace", "train"}
    ),
    "analyze": frozenset({"records", "settings"}),
    "processes": frozenset(
        {"data", "hardware", "memory_forecast", "meter", "models", "records", "settings", "train"}
    ),
    "memory_forecast": frozenset(
        {"data", "hardware", "meter", "models", "records", "settings", "train"}
    ),
    "train": frozenset({"data", "hardware", "meter", "models", "records", "settings"}),
    "trace": frozenset({"hardware", "meter", "models", "records"}),
    "telemetry": frozenset({"hardware", "meter", "records"}),
    "meter": frozenset({"hardware", "models", "records"}),
    "accelerator": frozenset({"models", "records"}),
    "records": frozenset(),
    "settings": frozenset(),
    "hardware": frozenset({"records"}),
    "data": frozenset({"records"}),
    "models": frozenset({"records"}),
}

# Of `records` these may import the types alone.
TYPES_ONLY = frozenset({"accelerator", "doctor", "hardware", "memory_forecast"})

# Packages that use the standard library only, and what they may use besides.
STANDARD_LIBRARY_AND: dict[str, frozenset[str]] = {
    **dict.fromkeys(BASE, frozenset()),
    "files": frozenset({"tomli"}),  # `tomllib` on Python 3.10
    "settings": frozenset({"pydantic"}),
    "records": frozenset({"pandas", "polars", "typing_extensions"}),  # frames on request
    "analyze": frozenset(),
}

HEAVY = frozenset({"torch", "numpy"})
NOT_HEAVY_WHEN_IMPORTED = frozenset(
    {"settings", "records", "analyze", "report", "hardware", "cli", "experiments", "supervisor"}
    | {"doctor", "telemetry", "__main__", "__init__"}
)
NEVER_HEAVY = frozenset({"records", "analyze", "report"} | BASE)


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def violations(tree: ast.Module, package: str) -> list[str]:
    """List the imports in a module of `package` that the tables above forbid."""
    at_module_level = set(map(id, _module_level(tree.body)))
    found = []
    for node in ast.walk(tree):
        for target in _imported(node):
            top, _, rest = target.partition(".")
            line = f"line {getattr(node, 'lineno', 0)}: {package} imports {target or 'relatively'}"
            if not target:
                found.append(f"{line}: write it in full, imports are read by name")
            elif top == "stepscope":
                if not _is_allowed(package, rest.partition(".")[0]):
                    found.append(f"{line}: not in the table")
                elif (
                    package in TYPES_ONLY and rest.startswith("records") and rest != "records.types"
                ):
                    found.append(f"{line}: only records.types")
            elif top in HEAVY and package in NEVER_HEAVY:
                found.append(f"{line}: it must work without {top}")
            elif (
                top in HEAVY and package in NOT_HEAVY_WHEN_IMPORTED and id(node) in at_module_level
            ):
                found.append(f"{line}: only inside the function that needs it")
            elif (
                package in STANDARD_LIBRARY_AND
                and top not in sys.stdlib_module_names
                and top not in STANDARD_LIBRARY_AND[package]
            ):
                found.append(f"{line}: not in the standard library")
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
            # Other names (`__version__`) belong to the package itself.
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


def _is_allowed(package: str, target: str) -> bool:
    if package in BASE:
        return target in BASE
    return target in BASE or target in ("", package) or target in MAY_IMPORT[package]


def package_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_import_is_in_the_table():
    assert [
        f"{file.relative_to(SOURCE)}, {found}"
        for file in MODULES
        for found in violations(parsed(file), package_of(file))
    ] == []


def test_every_package_is_in_the_table():
    assert {package_of(file) for file in MODULES} - BASE <= set(MAY_IMPORT)


def test_packages_import_each_other_in_one_direction():
    above: dict[str, frozenset[str]] = dict(MAY_IMPORT)
    while above:
        lowest = {package for package, below in above.items() if not below & set(above)}
        assert lowest, f"a cycle among {sorted(above)}"
        above = {package: below for package, below in above.items() if package not in lowest}


def test_no_file_name_occurs_twice():
    by_name = defaultdict(list)
    for file in MODULES:
        if file.name not in ("__init__.py", "__main__.py"):
            by_name[file.name].append(str(file.relative_to(SOURCE)))
    assert [files for files in by_name.values() if len(files) > 1] == []


def test_no_class_name_occurs_twice():
    by_name = defaultdict(list)
    for file in MODULES:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef):
                by_name[node.name].append(str(file.relative_to(SOURCE)))
    assert {name: files for name, files in by_name.items() if len(files) > 1} == {}


def test_every_package_says_what_lives_in_it():
    folders = {file.parent for file in MODULES if file.parent.name != "autostart"}
    silent = [
        str(folder.relative_to(SOURCE))
        for folder in folders
        if not ast.get_docstring(parsed(folder / "__init__.py"))
    ]
    assert silent == []


# --- the three paths of docs/architecture.md ------------------------------------------------------


def paths_in_docs() -> dict[str, str]:
    """Give the text of each path by its heading."""
    page = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
    section = page.read_text(encoding="utf-8").split("\n## Three paths\n")[1].split("\n## ")[0]
    return dict(part.split("\n", 1) for part in section.split("\n### ")[1:])


def names_in(text: str) -> list[str]:
    return re.findall(r"`([a-z_]+(?:\.\w+){2,})`", text)


def file_of(name: str) -> tuple[Path, list[str]]:
    """Split `package.module.Class.method` into the module's file and the names inside it."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        place = SOURCE.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file, parts[length:]
    raise AssertionError(f"docs/architecture.md: {name}: no such module")


def is_defined(name: str) -> bool:
    file, inside = file_of(name)
    body = parsed(file).body
    for part in inside:
        found = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part
        ]
        if not found:
            return False
        body = found[0].body
    return True


def test_every_function_on_the_three_paths_exists():
    names = [name for text in paths_in_docs().values() for name in names_in(text)]
    assert len(names) > 30
    assert [name for name in names if not is_defined(name)] == []


def test_each_path_states_through_how_many_files_it_goes():
    paths = paths_in_docs()
    assert len(paths) == 3
    for heading, text in paths.items():
        stated = re.search(r"(\d+) files\.", text)
        assert stated is not None, heading
        path, *_ = text.split("**Alternative route.**")
        assert int(stated[1]) == len({file_of(name)[0] for name in names_in(path)}), heading


@pytest.mark.parametrize(
    ("package", "planted"),
    [
        ("train", "from stepscope.report.terminal import run_tables"),
        ("train", "from stepscope import experiments"),
        ("accelerator", "from stepscope.records import run_reader"),
        ("units", "from stepscope.settings import RunSpec"),
        ("meter", "from ..train import loop"),
        ("meter", "def later():\n    from stepscope.train import loop"),
        ("meter", "import importlib\nimportlib.import_module('stepscope.train.loop')"),
        ("meter", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stepscope.cli"),
        ("stats", "import numpy as np"),
        ("records", "def later():\n    import numpy"),
        ("cli", "import torch.nn.functional as F"),
        ("hardware", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
        ("experiments", "class Loader:\n    import numpy"),
    ],
)
def test_a_planted_violation_is_seen(package, planted):
    assert len(violations(ast.parse(planted), package)) == 1


@pytest.mark.parametrize(
    ("package", "fine"),
    [
        ("train", "import torch\nfrom stepscope.meter.clock import now_ns"),
        ("report", "from stepscope.analyze import run_summary\nfrom rich.text import Text"),
        ("cli", "def later():\n    import torch"),
        ("hardware", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("settings", "import pydantic\nfrom stepscope.units import parse_bytes"),
    ],
)
def test_what_the_table_allows_is_no_violation(package, fine):
    assert violations(ast.parse(fine), package) == []


def test_what_reads_or_supervises_runs_imports_neither_torch_nor_numpy():
    modules = (
        *("records.run_reader", "records.run_folder", "analyze.run_summary"),
        *("report.terminal.run_tables", "report.progress_bar", "settings.load_settings"),
        *("supervisor.start_run", "supervisor.script_child", "cli.main"),
    )
    code = "import importlib, sys\n"
    code += f"for name in {modules}:\n"
    code += "    importlib.import_module(f'stepscope.{name}')\n"
    code += "    if heavy := {'torch', 'numpy'} & {*sys.modules}: sys.exit(f'{name}: {heavy}')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_worst_phrases_stay_out_of_the_source():
    phrases = (
        *("a person's own", "somebody's own", "everybody who", "onlooker", "foretell", "foresee"),
        *("in the making", "is told of", "says of itself"),
    )
    assert [
        f"{file.relative_to(SOURCE)}: {phrase}"
        for file in MODULES
        for phrase in phrases
        if phrase in file.read_text(encoding="utf-8").lower()
    ] == []

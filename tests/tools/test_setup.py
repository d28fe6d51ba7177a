"""The set-up of `.venv`: its messages, the torch it chooses, the versions it pins."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "setup_venv.py"
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
OLDEST_TORCH = (2, 4)


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_venv", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup_venv = load_script()


def normal(name: str) -> str:
    """Spell a package name the way pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(constraints: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in constraints.splitlines():
        pin = re.match(r"([A-Za-z0-9._-]+)==(\S+?)(;|$)", line)
        if pin:
            found.setdefault(normal(pin.group(1)), []).append(pin.group(2))
    return found


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def copy_of_checkout(folder: Path) -> Path:
    """Copy what the set-up reads, so that no test touches the `.venv` it runs in."""
    (folder / "tools").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "tools")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def run_set_up(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # The Python that our own environment was made from: it is the one that `make` would be given.
    python = getattr(sys, "_base_executable", sys.executable)
    return subprocess.run(
        [python, "tools/setup_venv.py", "--for", "run"],
        cwd=checkout,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Give a function that puts a torch with this source before any other on the import path."""

    def put(source: str, metadata_version: str | None = None) -> None:
        folder = tmp_path / "fake"
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "__init__.py").write_text(source)
        # As in an installed wheel: without metadata of its own, another torch's would be found.
        info = folder / "torch-0.dist-info"
        info.mkdir()
        if metadata_version is not None:
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: torch\nVersion: {metadata_version}\n"
            )
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return put


# --- the Python we were given ---------------------------------------------------------------------


def test_an_old_python_is_told_what_was_wanted_what_was_found_and_what_to_do():
    with pytest.raises(setup_venv.SetupError) as caught:
        setup_venv.check_version((3, 9, 18))
    message = str(caught.value)
    assert "needs Python 3.10 or newer" in message
    assert "is Python 3.9.18" in message
    assert "make PYTHON=python3.11" in message


@pytest.mark.parametrize("version", [(3, 10, 0), (3, 13, 1), (4, 0, 0)])
def test_a_new_enough_python_passes(version: tuple[int, ...]):
    setup_venv.check_version(version)


def test_the_oldest_python_is_the_one_in_pyproject():
    wanted = ">={}.{}".format(*setup_venv.OLDEST_PYTHON)
    assert pyproject()["project"]["requires-python"] == wanted


def test_the_script_parses_as_python_3_6_so_that_an_old_python_gets_the_message():
    source = SCRIPT.read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    # The parser lets it pass, Python 3.6 does not.
    assert "from __future__ import annotations" not in source


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_or_ensurepip_is_told_the_debian_package(tmp_path: Path, module: str):
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / f"{module}.py").write_text(f"raise ImportError('no {module} here')\n")
    checkout = copy_of_checkout(tmp_path / "checkout")
    done = run_set_up(checkout, PYTHONPATH=str(shadow))
    assert done.returncode == 1
    assert f"no {module} here" in done.stderr
    assert "apt install python{}.{}-venv".format(*sys.version_info) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv").exists()


# --- torch and the constraints --------------------------------------------------------------------


def test_the_lower_bound_of_torch_is_read_from_pyproject():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert setup_venv.oldest_torch(text) == OLDEST_TORCH


def test_the_systems_torch_is_used_when_it_is_new_enough(fake_torch):
    fake_torch("print('hello from a vendor')\n__version__ = '2.5.0a0+nv24.8'\n", "2.5.0a0+nv24.8")
    assert setup_venv.usable_torch(sys.executable, OLDEST_TORCH) == "2.5.0a0+nv24.8"


def test_a_torch_that_is_too_old_is_named_and_not_used(fake_torch, capsys):
    fake_torch("__version__ = '1.13.1'\n", "1.13.1")
    assert setup_venv.usable_torch(sys.executable, OLDEST_TORCH) is None
    assert "torch is 1.13.1, stepscope needs 2.4 or newer" in capsys.readouterr().out


def test_a_torch_that_fails_to_import_is_reported_and_not_used(fake_torch, capsys):
    fake_torch("raise OSError('libcudart.so.12: cannot open shared object file')\n", "2.5.0")
    assert setup_venv.usable_torch(sys.executable, OLDEST_TORCH) is None
    assert "libcudart.so.12: cannot open shared object file" in capsys.readouterr().out


def test_a_torch_that_kills_the_interpreter_is_reported_and_not_used(fake_torch, capsys):
    fake_torch("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "2.5.0")
    assert setup_venv.usable_torch(sys.executable, OLDEST_TORCH) is None
    assert "exit code -9" in capsys.readouterr().out


def test_without_a_torch_nothing_is_said(tmp_path: Path, capsys):
    # -S leaves out the site-packages, and with them any torch that the tests run with.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    assert setup_venv.usable_torch(str(bare), OLDEST_TORCH) is None
    assert capsys.readouterr().out == ""


def test_with_the_systems_torch_its_version_replaces_our_torch_section():
    effective = pins(setup_venv.constraints_for(CONSTRAINTS, "2.5.0a0+nv24.8"))
    assert effective["torch"] == ["2.5.0a0+nv24.8"]
    assert "sympy" not in effective
    assert "numpy" not in effective
    everything = pins(CONSTRAINTS)
    for name in ("rich", "pillow", "pytest", "hatchling"):
        assert effective[name] == everything[name]


def test_without_a_system_torch_the_constraints_stay_as_they_are():
    assert setup_venv.constraints_for(CONSTRAINTS, None) == CONSTRAINTS


# --- what is pinned -------------------------------------------------------------------------------


def test_torch_is_pinned_to_the_release_that_was_tried():
    assert pins(CONSTRAINTS)["torch"] == ["2.13.0"]


def test_every_package_that_pyproject_names_is_pinned():
    project = pyproject()["project"]
    named = [*pyproject()["build-system"]["requires"], *project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        named += extra
    names = {normal(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in named}
    assert names - {"stepscope"} <= set(pins(CONSTRAINTS))


def test_every_line_of_the_constraints_is_a_comment_or_an_exact_version():
    marker = r'(; python_version (<|>=) "3\.11")?'
    for line in CONSTRAINTS.splitlines():
        assert line == "" or line.startswith("#") or re.fullmatch(rf"[\w-]+==[\w.]+{marker}", line)


# --- the whole ------------------------------------------------------------------------------------


def test_a_failing_pip_ends_in_advice_and_leaves_a_mark_to_start_anew(tmp_path: Path):
    checkout = copy_of_checkout(tmp_path / "checkout with a blank")
    done = run_set_up(
        checkout, PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull, PYTHONPATH=""
    )
    assert done.returncode == 1
    assert "is the package index reachable" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv" / ".stamp-run").exists()
    assert setup_venv.Venv(checkout).fault() == "an earlier set-up did not come to its end"


def test_a_folder_that_is_no_environment_is_made_anew(tmp_path: Path):
    (tmp_path / ".venv").mkdir()
    assert "its Python is missing" in setup_venv.Venv(tmp_path).fault()


@pytest.mark.long
def test_a_copy_of_the_repo_sets_itself_up_and_runs(tmp_path: Path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("LICENSE", "README.md", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, checkout / name)
    done = run_set_up(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout / ".venv" / ".stamp-run").exists()
    helped = subprocess.run(
        [".venv/bin/stepscope", "--help"], cwd=checkout, capture_output=True, text=True
    )
    assert helped.returncode == 0, helped.stderr
    assert "run" in helped.stdout

"""The setup of `.venv`: its messages, the torch it chooses, the versions it pins."""

import ast
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import setup_venv
from polling import wait_until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "setup_venv.py"
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
OLDEST_TORCH = (2, 4)
# The Python that our own environment was made from: it is the one that `make` would be given.
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)


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
    """Copy what the setup reads, so that no test touches the `.venv` it runs in."""
    (folder / "tools").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "tools")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def start_setup(checkout: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BASE_PYTHON, "tools/setup_venv.py", "--for", "run"],
        cwd=checkout,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a signal to its group is what Ctrl-C is on a terminal
    )


def run_setup(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    process = start_setup(checkout, **environment)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# Takes the place of the module `venv`: its Python runs a shell script where pip would be run.
VENV_STUB = """
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(sys.argv[-1])
    system = str("--system-site-packages" in sys.argv).lower()
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = " + system)
    python = folder / "bin" / "python"
    python.write_text({script!r})
    python.chmod(0o755)
"""
NOISY_PIP = """
echo "constraints: $PIP_CONSTRAINT $PIP_BUILD_CONSTRAINT."
echo "Collecting something"
echo "WARNING: pip has something to say" >&2
"""


class FakedCheckout:
    """A checkout whose setup calls a shell script instead of pip, and finds no torch."""

    def __init__(self, folder: Path) -> None:
        self.path = copy_of_checkout(folder / "checkout with a blank")
        self.venv = setup_venv.Venv(self.path)
        self.modules = folder / "modules"
        self.modules.mkdir()
        (self.modules / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
        self.pip(NOISY_PIP)

    def pip(self, script: str) -> None:
        script = f'#!/bin/sh\n[ "$1" = -m ] || exec "{BASE_PYTHON}" "$@"\n{script}'
        (self.modules / "venv.py").write_text(VENV_STUB.format(script=script))

    def start(self) -> subprocess.Popen[str]:
        return start_setup(self.path, PYTHONPATH=str(self.modules))

    def run(self) -> subprocess.CompletedProcess[str]:
        return run_setup(self.path, PYTHONPATH=str(self.modules))

    def log(self) -> str:
        return self.venv.log.read_text() if self.venv.log.exists() else ""


@pytest.fixture
def faked(tmp_path: Path) -> FakedCheckout:
    return FakedCheckout(tmp_path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def test_the_oldest_python_is_the_one_in_pyproject():
    wanted = ">={}.{}".format(*setup_venv.OLDEST_PYTHON)
    assert pyproject()["project"]["requires-python"] == wanted


def test_the_script_parses_as_python_3_6_so_that_an_old_python_gets_the_message():
    source = SCRIPT.read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    # The parser lets it pass, Python 3.6 does not.
    assert "from __future__ import annotations" not in source


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_or_ensurepip_is_told_the_debian_package(tmp_path, module):
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / f"{module}.py").write_text(f"raise ImportError('no {module} here')\n")
    checkout = copy_of_checkout(tmp_path / "checkout")
    done = run_setup(checkout, PYTHONPATH=str(shadow))
    assert done.returncode == 1
    assert f"no {module} here" in done.stderr
    assert "apt install python{}.{}-venv".format(*sys.version_info) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv").exists()


# --- torch and the constraints --------------------------------------------------------------------


def test_the_lower_bound_of_torch_is_read_from_pyproject():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert setup_venv.oldest_torch(text) == OLDEST_TORCH


@pytest.mark.parametrize(
    ("source", "metadata_version", "problem"),
    [
        ("__version__ = '1.13.1'", "1.13.1", "it is 1.13.1, and stepscope needs 2.4 or newer"),
        ("raise OSError('libcudart.so.12: not found')", "2.5.0", "libcudart.so.12: not found"),
        ("import os\nos.kill(os.getpid(), 9)", "2.5.0", "its import fails (exit code -9"),
        ("__version__ = '2.5.0'", None, "has no package metadata"),
    ],
    ids=["too old", "broken", "kills the interpreter", "unknown to pip"],
)
def test_a_torch_that_cannot_be_used_is_reported(fake_torch, source, metadata_version, problem):
    fake_torch(source + "\n", metadata_version)
    found = setup_venv.find_torch(sys.executable, OLDEST_TORCH)
    assert found.version is None
    assert problem in found.problem


def test_no_torch_is_no_problem(tmp_path):
    # -S leaves out the site-packages, and with them any torch that the tests run with.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    assert setup_venv.find_torch(str(bare), OLDEST_TORCH) == (None, None)


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


# --- the line of a stage --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (119.4, "119 s"), (125.2, "2 min 5 s")],
)
def test_a_duration_is_printed_with_few_digits(seconds, text):
    assert setup_venv.duration(seconds) == text


def stage_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> str:
    """Run a stage that lasts until a terminal would have shown its time, or for a moment."""
    monkeypatch.setattr(setup_venv, "TICK_S", 0.001)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", str(columns))
    with setup_venv.Stage("waiting"):
        end_s = time.monotonic() + (10 if stream.isatty() and columns > 40 else 0.05)
        while stream.getvalue().count("\r") < 2 and time.monotonic() < end_s:
            time.sleep(0.001)
    return stream.getvalue()


def test_a_terminal_shows_the_time_while_a_stage_runs(monkeypatch):
    shown = stage_on(Terminal(), monkeypatch).split("\r")
    assert shown[0] == "setup: waiting ... "
    assert len(shown) >= 4
    assert all(re.fullmatch(r"setup: waiting \.\.\. \d\.\d s\n?", line) for line in shown[1:])
    assert [line.endswith("\n") for line in shown].count(True) == 1


@pytest.mark.parametrize(("stream", "columns"), [(io.StringIO, 80), (Terminal, 25)])
def test_a_log_and_a_narrow_terminal_get_the_time_only_at_the_end(stream, columns, monkeypatch):
    shown = stage_on(stream(), monkeypatch, columns)
    assert re.fullmatch(r"setup: waiting \.\.\. \d\.\d s\n", shown)


def test_the_stages_fit_a_terminal_of_80_columns():
    for text in (setup_venv.TORCH_STAGE, *setup_venv.STAGES.values()):
        assert len(f"setup: {text} ... 59 min 59 s") < 80


# --- the whole ------------------------------------------------------------------------------------


LOG_OF_A_FAILED_BUILD = """$ python -m pip install torch
ERROR: of an earlier command
$ python -m pip install -e .
Obtaining file:///checkout
      OSError: file does not exist: nope.py
      [end of output]
  note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed
hint: See above for details.
"""
LOG_OF_RETRIES = """WARNING: Retrying, 1 left: connection refused
WARNING: Location 'a' is ignored
WARNING: Retrying, 0 left: connection refused
WARNING: Location 'b' is ignored
ERROR: No matching distribution found for torch
"""
COLLECTED = [f"Collecting package-{number}" for number in range(20)]


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (
            LOG_OF_A_FAILED_BUILD,
            [
                "      OSError: file does not exist: nope.py",
                "error: metadata-generation-failed",
            ],
        ),
        (LOG_OF_RETRIES, LOG_OF_RETRIES.splitlines()[2:]),
        ("\n\n".join(COLLECTED), COLLECTED[-setup_venv.LAST_LINES :]),
    ],
    ids=["the cause", "the last of repeated warnings", "the end of a log without errors"],
)
def test_of_a_log_the_lines_that_help_are_shown(log, shown):
    assert setup_venv.last_errors(log) == shown
    (line,) = setup_venv.last_errors("ERROR: " + "x" * 5000)
    assert len(line) < 500


def test_each_stage_prints_one_line_with_its_time_and_pip_only_to_the_log(faked):
    done = faked.run()
    assert done.returncode == 0, done.stderr
    expected = [
        r"setup: making \.venv with Python 3\.\S+ \.\.\. \d[\d.]* s",
        r"setup: installing PyTorch \(.+\) \.\.\. \d[\d.]* s",
        r"setup: installing stepscope and its dependencies \(.+\) \.\.\. \d[\d.]* s",
        r"setup: done in \d[\d.]* s",
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected), done.stdout
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line)
    assert done.stderr == ""
    assert faked.log().count("Collecting something\nWARNING: pip has something to say\n") == 2
    url = faked.venv.constraints.as_uri()
    assert " " not in url, "pip splits these variables at blanks"
    assert faked.log().count(f"constraints: {url} {url}.") == 2


def test_a_second_setup_keeps_the_environment_and_starts_a_new_log(faked):
    faked.run()
    (faked.venv.path / "lib/python3/site-packages/torch").mkdir(parents=True)
    done = faked.run()
    stages = [line.split(" ... ")[0] for line in done.stdout.splitlines()]
    assert stages[0] == "setup: checking .venv"
    assert stages[1].startswith("setup: installing stepscope")
    assert stages[2].startswith("setup: done in")
    assert faked.log().count("Collecting") == 1


def test_the_installed_torch_is_used_and_pinned(faked):
    (faked.modules / "sitecustomize.py").unlink()
    version = "2.5.0a0+nv24.8"
    (faked.modules / "torch.py").write_text(f"print('hello')\n__version__ = {version!r}\n")
    (faked.modules / "torch-2.5.0.dist-info").mkdir()
    (faked.modules / "torch-2.5.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    )
    done = faked.run()
    assert f"setup: using PyTorch {version} of" in done.stdout
    assert "installing PyTorch" not in done.stdout
    assert faked.venv.sees_system_packages()
    assert pins(faked.venv.constraints.read_text())["torch"] == [version]


def test_a_failing_pip_ends_in_its_errors_the_log_and_advice(faked):
    faked.pip('echo "ERROR: No matching distribution found" >&2; echo "hint: Look above"; exit 3')
    done = faked.run()
    assert done.returncode == 1
    assert re.search(r"installing PyTorch .* \.\.\. failed after \d[\d.]* s\n$", done.stdout)
    assert done.stderr.startswith(
        "setup failed: pip failed with exit code 3. From its log, .venv/setup.log:\n"
        "    ERROR: No matching distribution found\n"
        "Check that\n"
        "  - the package index can be reached"
    )
    assert "hint: Look above" in faked.log()
    assert not (faked.venv.path / ".stamp-run").exists()

    faked.pip(NOISY_PIP)
    again = faked.run()
    assert again.returncode == 0, again.stderr
    assert "setup: replacing .venv: an earlier setup did not finish\n" in again.stdout
    assert (faked.venv.path / ".stamp-run").exists()
    assert faked.venv.problem() is None


def test_a_failing_venv_ends_in_its_errors_and_the_log(faked):
    stub = "import sys\nif __name__ == '__main__':\n    sys.exit('Error: no room for .venv')\n"
    (faked.modules / "venv.py").write_text(stub)
    done = faked.run()
    assert done.returncode == 1
    assert "python -m venv failed with exit code 1. From its log, .venv/setup.log:" in done.stderr
    assert "    Error: no room for .venv\n" in done.stderr


def test_an_interrupted_setup_says_so_and_is_unfinished(faked):
    faked.pip("echo pip is at work; exec sleep 60")
    process = faked.start()
    try:
        wait_until(lambda: "pip is at work" in faked.log(), within_s=30)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert re.search(r"installing PyTorch .* \.\.\. interrupted after \d[\d.]* s\n$", out)
    assert err == "setup interrupted; run the same make command to start again\n"
    assert faked.venv.problem() == "an earlier setup did not finish"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_pip_that_outlives_the_interrupt_is_killed(monkeypatch):
    monkeypatch.setattr(setup_venv, "INTERRUPT_GRACE_S", 0.01)
    process = subprocess.Popen(["sleep", "60"])
    setup_venv.stop(process)
    assert process.returncode == -signal.SIGKILL


def test_an_interrupted_removal_leaves_the_environment_marked(faked, monkeypatch):
    faked.run()

    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(setup_venv.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        faked.venv.make(system_packages=False)
    assert faked.venv.problem() == "an earlier setup did not finish"


def test_a_damaged_environment_is_not_kept(faked):
    faked.run()
    (faked.venv.path / "bin/python").unlink()
    assert "its Python is missing" in faked.venv.problem()
    (faked.venv.path / "pyvenv.cfg").unlink()
    assert "not a complete virtual environment" in faked.venv.problem()


def test_make_test_all_adds_the_long_tests_to_make_test():
    def commands(target: str) -> list[str]:
        # A make that runs the tests would hand its own flags and level down to this one.
        outside = {name: value for name, value in os.environ.items() if "MAKE" not in name}
        command = ["make", "-n", target]
        shown = subprocess.run(
            command, cwd=ROOT, env=outside, capture_output=True, text=True, check=True
        )
        return shown.stdout.splitlines()

    assert commands("test-all") == [*commands("test"), ".venv/bin/pytest -m long"]


@pytest.mark.long
def test_a_copy_of_the_repo_sets_itself_up_and_runs(tmp_path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("LICENSE", "README.md", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, checkout / name)
    done = run_setup(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout / ".venv" / ".stamp-run").exists()
    helped = subprocess.run(
        [".venv/bin/stepscope", "--help"], cwd=checkout, capture_output=True, text=True
    )
    assert helped.returncode == 0, helped.stderr
    assert "run" in helped.stdout

"""Make `.venv` and install stepscope in it; `make` calls this with the user's Python.

Only the standard library, and only syntax that Python 3.6 reads: an old Python must reach the
message that says it is too old. For the same reason annotations newer than that are strings.

Each stage prints one line with the time it took. The output of the programs that it runs, pip above
all, goes to `.venv/setup.log`; its last errors are shown when a stage fails.

A torch that the given Python can already import is used, not replaced (a vendor's build for its
board is often the only one that drives the board). `.venv` then sees the system's packages, and the
`[torch]` section of constraints.txt gives way to the version found.

During the setup, `.venv/set-up-unfinished` exists. pip can take a package whose copying was cut
short for an installed one, so a `.venv` that contains this file is replaced.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 10)
TORCH_PROBE_TIMEOUT_S = 300

EXTRAS = {
    "run": "train,report,s3,serve",
    "test": "train,report,s3,serve,search,ray,dev,frameworks",
}
# Sizes: wheels of torch 2.13.0 and the rest of constraints.txt for x86-64 Linux, Python 3.11.
STAGES = {
    "run": "installing stepscope and its dependencies (up to 80 MB)",
    "test": "installing stepscope and the test tools (up to 170 MB)",
}
TORCH_STAGE = "installing PyTorch (0.2 GB; several GB with CUDA)"

TICK_S = 1.0  # how often a terminal shows the time so far
INTERRUPT_GRACE_S = 2.0  # Ctrl-C reaches pip as well, which then removes its temporary files
LAST_LINES = 6
LONGEST_LINE = 400
# The last lines of pip are often a hint to "see above"; these are the ones that name the cause.
ERROR_LINE = re.compile(r"WARNING:|(?!\s*(note|hint):).*error", re.IGNORECASE)

# Two versions, as pip goes by the metadata. A marked line, as an import may print as well.
TORCH_PROBE = """
import importlib.util
if importlib.util.find_spec("torch") is None:
    print("torch-probe: absent")
else:
    import torch
    from importlib import metadata
    try:
        known_to_pip = metadata.version("torch") or "unknown"
    except (metadata.PackageNotFoundError, KeyError):
        known_to_pip = "unknown"
    print("torch-probe:", torch.__version__, known_to_pip)
"""


class SetupError(Exception):
    """Carry a message for the user: what was expected, what was found, what to do."""


# --- what the user sees ---------------------------------------------------------------------------


def say(message: str) -> None:
    """Print one line, at once."""
    print("setup: " + message, flush=True)


def duration(seconds: float) -> str:
    """Format a duration: 3.2 s, 41 s, 2 min 5 s."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


class Stage:
    """Print one line: the stage when it begins, the time it took when it ends.

    A terminal that is wide enough for the line also shows the time so far.
    """

    def __init__(self, text: str) -> None:
        self._head = f"setup: {text} ... "
        self._shown = ""
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._show_time, daemon=True)

    def __enter__(self) -> "Stage":
        """Print the stage without ending the line."""
        room = shutil.get_terminal_size().columns - len(self._head)
        self._rewrites = sys.stdout.isatty() and room > len("59 min 59 s")
        self._start_s = time.monotonic()
        print(self._head, end="", flush=True)
        if self._rewrites:
            self._clock.start()
        return self

    def __exit__(self, kind: "type | None", error: object, traceback: object) -> None:
        """End the line with the time taken, and say so if the stage failed."""
        self._ended.set()
        if self._rewrites:
            self._clock.join()
        how = ""
        if kind is not None:
            how = "interrupted after " if issubclass(kind, KeyboardInterrupt) else "failed after "
        self._show(how + duration(time.monotonic() - self._start_s))
        print(flush=True)

    def _show_time(self) -> None:
        while not self._ended.wait(TICK_S):
            self._show(duration(time.monotonic() - self._start_s))

    def _show(self, ending: str) -> None:
        # The blanks cover what the line showed before.
        line = "\r" + self._head + ending.ljust(len(self._shown)) if self._rewrites else ending
        print(line, end="", flush=True)
        self._shown = ending


def run_logged(command: "list[str]", log: Path, environment: "dict[str, str] | None" = None) -> int:
    """Run a command in the checkout with all its output in the log; give its exit code."""
    with log.open("a", encoding="utf-8") as output:
        output.write("$ " + " ".join(command) + "\n")
        output.flush()
        process = subprocess.Popen(
            command,
            cwd=str(ROOT),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            return process.wait()
        finally:
            if process.returncode is None:
                stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Wait a moment for a process to end, then kill it."""
    try:
        process.wait(timeout=INTERRUPT_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def failure(program: str, exit_code: int, log: Path, advice: str) -> SetupError:
    """Describe a program that failed, with the errors in its log."""
    lines = last_errors(log.read_text(encoding="utf-8", errors="replace")) or ["(no output)"]
    return SetupError(
        f"{program} failed with exit code {exit_code}. From its log, {log.relative_to(ROOT)}:\n"
        + "".join(f"    {line}\n" for line in lines)
        + advice
    )


def last_errors(log: str) -> "list[str]":
    """Give the last errors of the latest command in the log; without any, its last lines."""
    printed = re.split(r"^\$ .*\n", log, flags=re.MULTILINE)[-1]
    lines = [line for line in printed.splitlines() if line.strip()]
    errors = []  # type: list[str]
    for line in filter(ERROR_LINE.match, lines):
        # pip repeats a warning for each attempt and each package; the last one is enough.
        if line.startswith("WARNING:"):
            errors = [other for other in errors if other.split()[:2] != line.split()[:2]]
        errors.append(line)
    return [
        line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "..."
        for line in (errors or lines)[-LAST_LINES:]
    ]


# --- the Python we were given ---------------------------------------------------------------------


def check_version(version: "tuple[int, ...]") -> None:
    """Raise `SetupError` if this version of Python is too old."""
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return
    raise SetupError(
        "stepscope needs Python {}.{} or newer; {} is Python {}.\n"
        "Install a newer one, for example on Debian or Ubuntu:\n"
        "    apt install python3.11 python3.11-venv\n"
        "Then choose it:\n"
        "    make PYTHON=python3.11 ...".format(
            OLDEST_PYTHON[0],
            OLDEST_PYTHON[1],
            sys.executable or "the given Python",
            ".".join(str(part) for part in version[:3]),
        )
    )


def check_modules() -> None:
    """Raise `SetupError` if this Python cannot make virtual environments with pip in them."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        minor = "{}.{}".format(*sys.version_info[:2])
        raise SetupError(
            "The Python modules venv and ensurepip are needed to make .venv; "
            f"{sys.executable} cannot import one of them ({error}).\n"
            "On Debian and Ubuntu they are in a separate package:\n"
            f"    apt install python{minor}-venv\n"
            "(python3-venv for the system's python3). Then run the same make command again."
        ) from error


# --- torch and the constraints --------------------------------------------------------------------


def oldest_torch(pyproject: str) -> "tuple[int, ...]":
    """Read the lower bound of torch from the text of pyproject.toml (3.10 has no tomllib)."""
    found = re.search(r'"torch>=([0-9.]+)"', pyproject)
    if found is None:
        raise SetupError('pyproject.toml has no requirement of the form "torch>=X.Y".')
    return version_numbers(found.group(1))


def version_numbers(version: str) -> "tuple[int, ...]":
    """Give the leading numbers of a version: 2.5.0a0+nv24 is (2, 5, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


class InstalledTorch(NamedTuple):
    """A search for an installed torch: its version as pip knows it, or why it cannot be used.

    Both are None where no torch is installed.
    """

    version: "str | None"
    problem: "str | None"


def find_torch(python: str, oldest: "tuple[int, ...]") -> InstalledTorch:
    """Find a torch that `python` can import, that is new enough and that pip will not replace."""
    try:
        probe = subprocess.run(
            [python, "-c", TORCH_PROBE],
            cwd=str(ROOT),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TORCH_PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return InstalledTorch(None, f"its import takes more than {TORCH_PROBE_TIMEOUT_S} s")
    answer = re.search(r"^torch-probe: (\S+)(?: (\S+))?$", probe.stdout, re.MULTILINE)
    if probe.returncode != 0 or answer is None:
        reason = (probe.stderr.strip().splitlines() or ["no output"])[-1]
        return InstalledTorch(None, f"its import fails (exit code {probe.returncode}: {reason})")
    version, known_to_pip = answer.groups()
    if version == "absent":
        return InstalledTorch(None, None)
    if version_numbers(version) < oldest:
        needed = ".".join(str(part) for part in oldest)
        return InstalledTorch(None, f"it is {version}, and stepscope needs {needed} or newer")
    if known_to_pip == "unknown":
        return InstalledTorch(None, f"version {version} has no package metadata")
    return InstalledTorch(str(known_to_pip), None)


def constraints_for(constraints: str, system_torch: "str | None") -> str:
    """Give the constraints to install with: ours, or the system's torch in place of `[torch]`."""
    if system_torch is None:
        return constraints
    kept = []
    section = ""
    for line in constraints.splitlines():
        header = re.match(r"# \[(\w+)\]", line)
        section = header.group(1) if header else section
        if section != "torch":
            kept.append(line)
    kept += ["# [torch] already installed", "torch==" + system_torch]
    return "\n".join(kept) + "\n"


# --- .venv ----------------------------------------------------------------------------------------


class Venv:
    """The virtual environment of a checkout: its state, and how it is made."""

    def __init__(self, root: Path) -> None:
        self.path = root / ".venv"
        self.python = str(self.path / "bin" / "python")
        self.constraints = self.path / "constraints.txt"
        self.log = self.path / "setup.log"
        self._config = self.path / "pyvenv.cfg"
        self._unfinished = self.path / "set-up-unfinished"

    def problem(self) -> "str | None":
        """Say why this environment cannot be used; None if it can."""
        if self._unfinished.exists():
            return "an earlier setup did not finish"
        # Without this file, its Python would install into the system's packages.
        if not self._config.is_file():
            return "it is not a complete virtual environment"
        try:
            subprocess.run(
                [self.python, "-c", "import pip, sys; sys.exit(sys.version_info < (3, 10))"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return "its Python is missing, broken, too old or without pip"
        return None

    def sees_system_packages(self) -> bool:
        """Tell whether it was made with --system-site-packages."""
        config = self._config.read_text(encoding="utf-8")
        return re.search(r"include-system-site-packages\s*=\s*true", config) is not None

    def make(self, system_packages: bool) -> None:
        """Make it with nothing but pip in it, in place of an older one."""
        self.path.mkdir(exist_ok=True)
        # Before the removal, which leaves half an environment when it is interrupted.
        self.begin()
        for entry in sorted(self.path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(str(entry))
            elif entry not in (self._unfinished, self.log):
                entry.unlink()
        command = [sys.executable, "-m", "venv"]
        command += ["--system-site-packages"] if system_packages else []
        exit_code = run_logged([*command, str(self.path)], self.log)
        if exit_code != 0:
            advice = "Check that the disk has free space (df -h .) and that you may write here."
            raise failure("python -m venv", exit_code, self.log, advice)

    def begin(self) -> None:
        """Mark the setup as unfinished and start an empty log."""
        self._unfinished.touch()
        self.log.write_text("", encoding="utf-8")

    def finish(self, profile: str) -> None:
        """Mark the setup as finished; the Makefile compares these stamps with their inputs."""
        self._unfinished.unlink()
        for stamp in ["run", "test"] if profile == "test" else ["run"]:
            (self.path / (".stamp-" + stamp)).touch()


def reuse(venv: Venv, oldest: "tuple[int, ...]") -> InstalledTorch:
    """Give the system's torch that `.venv` uses, if any, or why `.venv` must be replaced."""
    problem = venv.problem()
    if problem is not None or not venv.sees_system_packages():
        return InstalledTorch(None, problem)
    found = find_torch(venv.python, oldest)
    if found.version is None:
        return InstalledTorch(None, "the system's PyTorch can no longer be used")
    return found


def prepare(venv: Venv, oldest: "tuple[int, ...]") -> "str | None":
    """Make `.venv` or keep a usable one; give the version of the system's torch that it uses."""
    if venv.path.exists():
        with Stage("checking .venv"):
            kept = reuse(venv, oldest)
        if kept.problem is None:
            venv.begin()
            return kept.version
        say("replacing .venv: " + kept.problem)
    check_modules()
    with Stage("making .venv with Python {}.{}.{}".format(*sys.version_info[:3])):
        found = find_torch(sys.executable, oldest)
        venv.make(system_packages=found.version is not None)
        # A torch inside another virtual environment is not among the packages that .venv sees.
        if found.version is not None and find_torch(venv.python, oldest) != found:
            found = InstalledTorch(None, f"version {found.version} is not visible from .venv")
            venv.make(system_packages=False)
    if found.version is not None:
        say(f"using PyTorch {found.version} of {sys.executable}")
    elif found.problem is not None:
        say(f"not using the PyTorch of {sys.executable}: {found.problem}")
    return found.version


def install(venv: Venv, profile: str, system_torch: "str | None") -> None:
    """Install stepscope, editable, and what the profile needs."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    venv.constraints.write_text(constraints_for(text, system_torch), encoding="utf-8")
    # First and apart: it is most of the download, and takes most of the time.
    if system_torch is None and not any(venv.path.glob("lib/python*/site-packages/torch")):
        with Stage(TORCH_STAGE):
            pip_install(venv, ["torch"])
    with Stage(STAGES[profile]):
        pip_install(venv, ["-e", f".[{EXTRAS[profile]}]"])


def pip_install(venv: Venv, requirements: "list[str]") -> None:
    """Run `pip install` with the constraints; raise `SetupError` if it fails."""
    # As a URL, since pip splits these variables at blanks. They reach the builds that pip starts:
    # the first in pip before 26.2, the second from 25.3 on.
    constraints = venv.constraints.as_uri()
    environment = dict(
        os.environ,
        PIP_CONSTRAINT=constraints,
        PIP_BUILD_CONSTRAINT=constraints,
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
        PIP_USER="0",
    )
    command = [venv.python, "-m", "pip", "install", "--no-color", "--progress-bar", "off"]
    command += ["-c", str(venv.constraints), *requirements]
    exit_code = run_logged(command, venv.log, environment)
    if exit_code != 0:
        temporary = tempfile.gettempdir()
        advice = (
            "Check that\n"
            "  - the package index can be reached: .venv/bin/pip index versions rich\n"
            "  - pip's proxy and certificate are right: HTTPS_PROXY, .venv/bin/pip config list\n"
            f"  - the disks have free space: df -h . {temporary}\n"
            "Then run the same make command again; pip keeps its downloads in a cache."
        )
        raise failure("pip", exit_code, venv.log, advice)


def main(arguments: "list[str] | None" = None) -> int:
    """Run the setup; give the exit code."""
    parser = argparse.ArgumentParser(description="Make .venv and install stepscope in it.")
    parser.add_argument("--for", dest="profile", choices=sorted(EXTRAS), default="run")
    profile = parser.parse_args(arguments).profile
    start_s = time.monotonic()
    try:
        check_version(sys.version_info)
        oldest = oldest_torch((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        venv = Venv(ROOT)
        system_torch = prepare(venv, oldest)
        install(venv, profile, system_torch)
        venv.finish(profile)
    except SetupError as error:
        print(f"setup failed: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup failed: {error}", file=sys.stderr)
        print("Check the free disk space and the owner of .venv.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup interrupted; run the same make command to start again", file=sys.stderr)
        return 130
    say(f"done in {duration(time.monotonic() - start_s)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Make `.venv` and install stepscope into it; `make` calls this, with the user's own Python.

Only the standard library, and only syntax that Python 3.6 reads: an old Python must reach the
message that says it is too old. For the same reason annotations newer than that are strings.

A torch that the given Python can already import is used, not replaced (a vendor's build for its
board is often the only one that drives the board). `.venv` then sees the system's packages, and the
`[torch]` section of constraints.txt gives way to the version found.

While the set-up is under way, `.venv/set-up-unfinished` exists. pip can take a package whose
copying was cut short for an installed one, so a `.venv` with that file in it is made anew.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 10)
TORCH_PROBE_TIMEOUT_S = 300

EXTRAS = {
    "run": "train,report,s3,serve",
    "test": "train,report,s3,serve,search,ray,dev,frameworks",
}
# Sizes: wheels of torch 2.13.0 and the rest of constraints.txt for x86-64 Linux, Python 3.11.
DOWNLOADS = {
    "run": "stepscope, what a training run needs and what draws charts (about 80 MB{torch})",
    "test": "stepscope, what a training run and charts need, the test tools and the frameworks "
    "that tests watch (about 170 MB{torch})",
}
TORCH_DOWNLOAD = ", and torch: 0.2 GB without CUDA, several GB with; this may take minutes"

# Two versions, as pip goes by the metadata. A marked line, as an import may print of its own.
TORCH_PROBE = """
import importlib.util
if importlib.util.find_spec("torch") is None:
    print("torch-probe: absent")
else:
    import torch
    from importlib import metadata
    try:
        known_to_pip = metadata.version("torch")
    except metadata.PackageNotFoundError:
        known_to_pip = "unknown"
    print("torch-probe:", torch.__version__, known_to_pip)
"""


class SetupError(Exception):
    """Carry a message for the user: what was wanted, what was found, what to do."""


def say(message: str) -> None:
    """Print one line about what is being done, at once."""
    print("set-up: " + message, flush=True)


# --- the Python we were given ---------------------------------------------------------------------


def check_version(version: "tuple[int, ...]") -> None:
    """Raise `SetupError` if this version of Python is too old."""
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return
    raise SetupError(
        "stepscope needs Python {}.{} or newer; {} is Python {}.\n"
        "Install a newer one, for example on Debian or Ubuntu\n"
        "    apt install python3.11 python3.11-venv\n"
        "and name it to make:\n"
        "    make PYTHON=python3.11 ...".format(
            OLDEST_PYTHON[0],
            OLDEST_PYTHON[1],
            sys.executable or "the Python given",
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
            "Making .venv needs Python's modules venv and ensurepip; "
            f"{sys.executable} lacks one ({error}).\n"
            "Debian and Ubuntu keep them in a package of their own:\n"
            f"    apt install python{minor}-venv\n"
            "(or python3-venv, if this is the system's own python3), then the same make again."
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


def usable_torch(python: str, oldest: "tuple[int, ...]") -> "str | None":
    """Give the version of the torch that `python` can import and we can use, as pip knows it.

    None, and a line that says why, if there is one but it is broken, too old, or not known to pip
    (which would then install another over it); None without a word if there is none.
    """
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
        say(f"the system's torch did not import within {TORCH_PROBE_TIMEOUT_S} s; installing ours")
        return None
    answer = re.search(r"^torch-probe: (\S+)(?: (\S+))?$", probe.stdout, re.MULTILINE)
    if probe.returncode != 0 or answer is None:
        reason = (probe.stderr.strip().splitlines() or ["nothing printed"])[-1]
        say(f"the system's torch does not import (exit code {probe.returncode}: {reason})")
        say("installing ours beside it, in .venv")
        return None
    version, known_to_pip = answer.groups()
    if version == "absent":
        return None
    if version_numbers(version) < oldest:
        wanted = ".".join(str(part) for part in oldest)
        say(f"the system's torch is {version}, stepscope needs {wanted} or newer; installing ours")
        return None
    if known_to_pip == "unknown":
        say(f"the system's torch {version} has no package metadata; installing ours")
        return None
    return str(known_to_pip)


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
    kept += ["# [torch] the system's own", "torch==" + system_torch]
    return "\n".join(kept) + "\n"


# --- .venv ----------------------------------------------------------------------------------------


class Venv:
    """The virtual environment of a checkout: what state it is in, and making it."""

    def __init__(self, root: Path) -> None:
        self.path = root / ".venv"
        self.python = str(self.path / "bin" / "python")
        self.constraints = self.path / "constraints.txt"
        self._unfinished = self.path / "set-up-unfinished"

    def fault(self) -> "str | None":
        """Say why this is not an environment to go on with; None if it is one."""
        if self._unfinished.exists():
            return "an earlier set-up did not come to its end"
        try:
            subprocess.run(
                [self.python, "-c", "import pip, sys; sys.exit(sys.version_info < (3, 10))"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return "its Python is missing, broken, without pip or too old"
        return None

    def sees_system_packages(self) -> bool:
        """Tell whether it was made with --system-site-packages."""
        config = (self.path / "pyvenv.cfg").read_text(encoding="utf-8")
        return re.search(r"include-system-site-packages\s*=\s*true", config) is not None

    def make(self, system_packages: bool) -> None:
        """Make it anew, empty but for pip."""
        if self.path.exists():
            shutil.rmtree(str(self.path))
        self.path.mkdir()
        self.begin()
        options = ["--system-site-packages"] if system_packages else []
        made = subprocess.run(
            [sys.executable, "-m", "venv", *options, str(self.path)],
            stdin=subprocess.DEVNULL,
        )
        if made.returncode != 0:
            raise SetupError(
                f"`{sys.executable} -m venv` failed (exit code {made.returncode}); its own words "
                "are above.\nCheck the space left on this disk, and that the checkout is writable."
            )

    def begin(self) -> None:
        """Mark the set-up as under way."""
        self._unfinished.touch()

    def finish(self, profile: str) -> None:
        """Mark the set-up as done; the Makefile compares these stamps with what they depend on."""
        self._unfinished.unlink()
        for stamp in ["run", "test"] if profile == "test" else ["run"]:
            (self.path / (".stamp-" + stamp)).touch()


def prepare(venv: Venv, oldest: "tuple[int, ...]") -> "str | None":
    """See to it that `.venv` is sound; give the version of the system's torch if it uses that."""
    if venv.path.exists():
        fault = venv.fault()
        if fault is None and not venv.sees_system_packages():
            return None
        if fault is None:
            found = usable_torch(venv.python, oldest)
            if found is not None:
                return found
            fault = "it was made for the system's torch, which is no longer of use"
        say(f".venv is made anew: {fault}")
    check_modules()
    found = usable_torch(sys.executable, oldest)
    say("making .venv with Python {}.{}.{}".format(*sys.version_info[:3]))
    venv.make(system_packages=found is not None)
    if found is None:
        return None
    # A torch inside another virtual environment is not among the packages that .venv sees.
    if usable_torch(venv.python, oldest) != found:
        say(f"torch {found} of {sys.executable} cannot be seen from .venv; installing ours")
        venv.make(system_packages=False)
        return None
    say(f"using the system's torch {found}")
    return found


def install(venv: Venv, profile: str, system_torch: "str | None") -> None:
    """Install stepscope, editable, and what the profile needs."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    venv.constraints.write_text(constraints_for(text, system_torch), encoding="utf-8")
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
    has_torch = system_torch is not None or any(venv.path.glob("lib/python*/site-packages/torch"))
    say("installing " + DOWNLOADS[profile].format(torch="" if has_torch else TORCH_DOWNLOAD))
    command = [venv.python, "-m", "pip", "install", "-q", "-c", str(venv.constraints)]
    command += ["-e", f".[{EXTRAS[profile]}]"]
    done = subprocess.run(command, cwd=str(ROOT), env=environment, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        temporary = tempfile.gettempdir()
        raise SetupError(
            f"pip could not install .[{EXTRAS[profile]}] (exit code {done.returncode}); its own "
            "words are above. To check:\n"
            "  - is the package index reachable (`.venv/bin/pip index versions rich`)?\n"
            "  - behind a proxy, are HTTPS_PROXY or pip's `proxy` and `cert` settings right?\n"
            f"  - is there room here and in {temporary} (`df -h . {temporary}`)? With CUDA, torch "
            "takes several GB.\n"
            "Then the same make again; what was downloaded is in pip's cache."
        )


def main(arguments: "list[str] | None" = None) -> int:
    """Run the set-up; give the exit code."""
    parser = argparse.ArgumentParser(description="Make .venv and install stepscope into it.")
    parser.add_argument("--for", dest="profile", choices=sorted(EXTRAS), default="run")
    profile = parser.parse_args(arguments).profile
    start_s = time.time()
    try:
        check_version(sys.version_info)
        oldest = oldest_torch((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        venv = Venv(ROOT)
        system_torch = prepare(venv, oldest)
        venv.begin()
        install(venv, profile, system_torch)
        venv.finish(profile)
    except SetupError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        print("Check the space left on this disk and who owns .venv.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up interrupted; the next make begins it anew", file=sys.stderr)
        return 130
    say(f"done in {time.time() - start_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

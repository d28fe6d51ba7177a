"""The errors that stepscope raises on purpose, and their exit codes.

    StepscopeError                 70  an internal error
     ├─ AnswerIsNo                  1  done, and the answer is no (the loss became NaN)
     ├─ RequestError                2  the request is invalid
     ├─ DataError                   3  the data is invalid or unavailable
     ├─ OutOfMemoryError            4  the run does not fit
     ├─ MachineError                5  a part of this machine is missing or full
     │   └─ MissingExtraError       5  an optional dependency is not installed
     ├─ Undecided                   6  the evidence does not suffice
     └─ Interrupted               130  stopped by the user or a signal

A message says what was expected, what was found and what to do next. Only `cli/` turns an error
into a message and an exit code.
"""

from __future__ import annotations

import difflib
import errno
import importlib.util
import re
from collections.abc import Iterable

# A full disk: the device, a quota, or a limit on the size of one file.
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StepscopeError(Exception):
    """The root of these errors; raised itself, it is an internal error."""

    exit_code = 70


class AnswerIsNo(StepscopeError):  # noqa: N818 - it is an answer, not an error
    """The work was done and the answer is no."""

    exit_code = 1


class RequestError(StepscopeError):
    """The request is invalid: a name, a value, an output folder."""

    exit_code = 2


class DataError(StepscopeError):
    """The data is missing, altered, or cannot be downloaded."""

    exit_code = 3


# What libraries say when memory runs out: torch for CPUs and CUDA (its OutOfMemoryError, and the
# assertion of NVML on a Jetson or a MIG slice), cuBLAS and its like, cuDNN, the shared memory of
# loader workers, XLA.
_OUT_OF_MEMORY = re.compile(
    "OutOfMemoryError|MemoryError|out of (?:shared )?memory|can(?:'|no)t allocate memory"
    "|NVML_SUCCESS ==.*INTERNAL ASSERT FAILED|ALLOC(?:ATION)?_FAILED|OUT_OF_MEMORY"
    "|cudaErrorMemoryAllocation|unable to find a valid cuDNN algorithm|RESOURCE_EXHAUSTED"
    "|bad_alloc|failed to map segment|memory allocation still failed",
    re.IGNORECASE,
)


def is_out_of_memory(text: str) -> bool:
    """Return whether the text of an error, with or without its type, says that memory ran out."""
    return _OUT_OF_MEMORY.search(text) is not None


class OutOfMemoryError(StepscopeError):
    """The run needs more memory than there is."""

    exit_code = 4


class MachineError(StepscopeError):
    """A part of this machine is missing or full: a device, a disk, a permission."""

    exit_code = 5


class MissingExtraError(MachineError):
    """An optional dependency is needed and not installed."""

    def __init__(self, needed_for: str, package: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs {package}, which is not installed. "
            f"Install it with: pip install 'stepscope[{extra}]'"
        )


def require_packages(needed_for: str, extra: str, *packages: str) -> None:
    """Check that packages are installed, without importing them."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(needed_for, package, extra)


class Undecided(StepscopeError):  # noqa: N818 - it is an answer, not an error
    """The work was done, and the evidence does not suffice for an answer."""

    exit_code = 6


class Interrupted(StepscopeError):  # noqa: N818 - stopping is not an error
    """The run was asked to stop."""

    exit_code = 130


def error_of(exit_code: int, message: str) -> StepscopeError:
    """Return the error with which another process ended."""
    kinds = (
        *(AnswerIsNo, RequestError, DataError, OutOfMemoryError),
        *(MachineError, Undecided, Interrupted),
    )
    kind = next((kind for kind in kinds if kind.exit_code == exit_code), StepscopeError)
    return kind(message)


def disk_full(error: OSError, what: str) -> MachineError:
    """Return the error for a write to a full disk."""
    return MachineError(
        f"cannot write {what}: {error.strerror or error}. Free some space and try again; "
        "continue a run with `stepscope resume RUN`."
    )


def limit_reached(failure: BaseException | str) -> StepscopeError | None:
    """Return the error for a limit of this machine (ulimit) that a failure ran into, if one.

    The failure may be what a library printed before it ended the process.
    """
    text = failure if isinstance(failure, str) else f"{type(failure).__name__}: {failure}"
    found = text.lower()
    if "too many open files" in found:
        return MachineError(
            f"too many open files{_limit('RLIMIT_NOFILE', 'ulimit -n')}. Raise the limit, for "
            "example with `ulimit -n 1024`, or use fewer --workers."
        )
    if "resource temporarily unavailable" in found or "can't start new thread" in found:
        return MachineError(
            f"no further process or thread can be started{_limit('RLIMIT_NPROC', 'ulimit -u')}. "
            "Raise that limit or the container's (pids.max), or use fewer --workers."
        )
    if is_out_of_memory(text):
        limit = address_space_limit()
        advice = "Raise that limit" if limit else "Use a smaller --batch-size"
        lines = text.splitlines()
        named = next(filter(is_out_of_memory, lines), "")
        return OutOfMemoryError(f"out of memory{limit}: {named.strip(' .')}. {advice}.")
    return None


def address_space_limit() -> str:
    """Return the limit of the address space in words; nothing if there is none."""
    return _limit("RLIMIT_AS", "ulimit -v, in KiB", 1024)


def _limit(name: str, set_by: str, unit: int = 1) -> str:
    """Return a limit of this process in words; nothing if there is none."""
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return "" if soft == resource.RLIM_INFINITY else f" (the limit is {soft // unit:,}: {set_by})"


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the closest known name, or all of them when none is close."""
    choices = sorted(known)
    folded = {choice.lower().replace("-", "_"): choice for choice in choices}
    close = difflib.get_close_matches(wrong.lower().replace("-", "_"), folded, n=1, cutoff=0.5)
    if close:
        return f" Did you mean {folded[close[0]]!r}?"
    return f" Known: {', '.join(choices)}."

"""A process with torch imported that forks other processes: `stepscope.processes.fork_server`.

Importing torch takes seconds, a fork takes milliseconds. The parent (`supervisor.warm_start`)
sends one request for each process over a socket.

A forked process shares memory with its parent, and copies a page when it first writes to it. Both
would change the measurements. The new process therefore first copies every private page, and maps
the library pages that this process has mapped. This process must not start threads: they do not
survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.hardware.process_memory import give_back
from stepscope.records.types import ForkAnswer, ForkRequest

LARGEST_REQUEST = 2**20
MOST_DESCRIPTORS = 8

_PAGE = 4096
_PRESENT, _OF_FILE = 1 << 63, 1 << 61  # Documentation/admin-guide/mm/pagemap.rst
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # madvise(2), Linux 5.14 and newer
_ABOVE_ALL = 512  # larger than any descriptor in use


class PageRange(NamedTuple):
    """A range of addresses, and the `madvise` advice that populates its pages."""

    start: int
    length: int
    advice: int


def main(argv: list[str]) -> None:
    """Import the modules of a training, then fork for each request until the socket closes."""
    control_number, parent = map(int, argv)
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_number)
    try:
        _import_training()
        pages = list(resident_pages())
        page = ctypes.create_string_buffer(2 * _PAGE)
        inside = -(-ctypes.addressof(page) // _PAGE) * _PAGE
        if _madvise()(inside, _PAGE, _POPULATE_WRITE):
            raise OSError(ctypes.get_errno(), "madvise(MADV_POPULATE_WRITE)")
    except (ImportError, OSError) as error:
        _answer(control, {"error": f"{type(error).__name__}: {error}"})
        return
    copied = sum(each.length for each in pages if each.advice == _POPULATE_WRITE)
    _answer(control, {"private_bytes": copied})
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, LARGEST_REQUEST, MOST_DESCRIPTORS)
        if not data:
            return
        pid = _fork_orphan(control, json.loads(data), descriptors, pages)
        for descriptor in descriptors:
            os.close(descriptor)
        _answer(control, {"pid": pid})


def _answer(control: socket.socket, answer: ForkAnswer) -> None:
    control.send(json.dumps(answer).encode())


def _import_training() -> None:
    gc.disable()
    import torch

    from stepscope.processes import training_session  # noqa: F401

    # The first optimiser of a process imports a good part of torch.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    gc.enable()
    gc.collect()
    gc.freeze()
    give_back()


def _fork_orphan(
    control: socket.socket,
    request: ForkRequest,
    descriptors: list[int],
    pages: list[PageRange],
) -> int:
    """Fork a process that becomes a child of our parent; return its pid.

    The process in between exits at once, and our parent is the subreaper (PR_SET_CHILD_SUBREAPER).
    """
    read_end, write_end = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        pid = os.fork()
        if pid:
            os.write(write_end, str(pid).encode())
            os._exit(0)
        os.close(read_end)
        os.close(write_end)
        control.close()
        _run(request, descriptors, pages, between)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        pid = int(answer.read())
    os.waitpid(between, 0)
    return pid


def _run(
    request: ForkRequest, descriptors: list[int], pages: list[PageRange], between: int
) -> NoReturn:
    """Run a module as `python -m` does, in a process that was just forked."""
    code = 1
    try:
        os.setsid()
        while os.getppid() == between:
            time.sleep(0.0002)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["cgroup"] is not None:  # before its pages are copied: they count there
            Path(request["cgroup"], "cgroup.procs").write_text("0", encoding="ascii")
        # Moved out of the way first: a wanted number may be in use.
        moved = [os.dup2(each, _ABOVE_ALL + at) for at, each in enumerate(descriptors)]
        for each in descriptors:
            os.close(each)
        for each, wanted in zip(moved, request["descriptors"], strict=True):
            os.dup2(each, wanted)
            os.close(each)
        os.chdir(request["directory"])
        if os.environ != request["environment"]:
            os.environ.clear()
            os.environ.update(request["environment"])
        madvise = _madvise()
        for span in pages:  # an error means that the range has been unmapped since
            madvise(span.start, span.length, span.advice)
        import numpy as np

        np.random.seed()  # otherwise all processes draw the same numbers
        sys.argv = [request["module"], *request["arguments"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):  # the reader may have exited
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def resident_pages() -> Iterator[PageRange]:
    """Yield the resident pages of private mappings, as ranges with the same advice.

    Anonymous pages will be copied, file pages mapped; pages that are not writable stay shared.
    """
    import numpy as np

    with (
        Path("/proc/self/maps").open(encoding="utf-8") as maps,
        Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap,
    ):
        for line in maps.read().splitlines():
            addresses, permissions, *_ = line.split()
            start, stop = (int(each, 16) for each in addresses.split("-"))
            if permissions[3] != "p" or permissions[0] != "r" or "[v" in line:
                continue
            pagemap.seek(start // _PAGE * 8)
            entries = np.frombuffer(pagemap.read((stop - start) // _PAGE * 8), dtype=np.uint64)
            present = (entries & np.uint64(_PRESENT)) != 0
            of_file = (entries & np.uint64(_OF_FILE)) != 0
            writable = "w" in permissions
            advice = np.where(of_file, _POPULATE_READ, _POPULATE_WRITE if writable else 0)
            for advised, run in itertools.groupby(np.where(present, advice, 0).tolist()):
                length = sum(1 for _ in run) * _PAGE
                if advised:
                    yield PageRange(start, length, advised)
                start += length


def _madvise() -> Any:
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    return madvise


if __name__ == "__main__":
    main(sys.argv[1:])

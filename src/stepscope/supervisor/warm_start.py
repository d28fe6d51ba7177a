"""Start processes by a fork of one that has torch imported (`processes.fork_server`).

A trial of a few steps then costs little more than its steps. There is no fork outside Linux, on
kernels before 5.14, and where the server would take a noticeable part of the memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

from stepscope.hardware import host
from stepscope.records.types import ForkAnswer, ForkRequest

_SET_CHILD_SUBREAPER = 36  # prctl(2)
_IMPORT_WITHIN_S = 120.0
_FORK_WITHIN_S = 30.0
_MOST_OF_MEMORY = 0.03


class ForkedProcess:
    """A process forked by the server, a child of this one; like `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self.returncode: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Return the exit code, negative for a signal; None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        """Wait for its end, however long that takes."""
        code = self.poll(0)
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still lives."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


# A process that was started here, forked or not.
ChildProcess: TypeAlias = "subprocess.Popen[bytes] | ForkedProcess"


class ForkServer:
    """A process that waits with torch imported; it is started when the first fork is wanted."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self.reason: str | None = None if sys.platform == "linux" else "only on Linux"

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None = None,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        cgroup: Path | None = None,
    ) -> ForkedProcess | None:
        """Run a module as `python -m` would, in its own session; None if it cannot be forked.

        It joins a control group before it takes memory. Its standard error goes to its standard
        output by default.
        """
        if self.reason is not None:
            return None
        if self._control is None:
            self._start(environment)
        control = self._control
        if control is None:
            return None
        read_end, write_end = os.pipe()
        with open(os.devnull, "rb") as nothing, os.fdopen(write_end, "wb") as output:  # noqa: PTH123
            given = {
                0: nothing.fileno() if stdin is None else stdin,
                1: output.fileno(),
                2: output.fileno() if stderr is None else stderr,
                **{number: number for number in pass_fds},
            }
            request: ForkRequest = {
                "module": module,
                "arguments": list(arguments),
                "environment": dict(environment),
                "directory": str(Path.cwd()),
                "descriptors": list(given),
                "cgroup": None if cgroup is None else str(cgroup),
            }
            try:
                with _adopting_orphans():
                    message = [json.dumps(request).encode()]
                    socket.send_fds(control, message, list(given.values()))
                    answer = self._answer(_FORK_WITHIN_S)
            except OSError as error:
                self._disable(f"the fork server has ended: {error}")
                answer = {}
        if "pid" not in answer:
            os.close(read_end)
            return None
        return ForkedProcess(answer["pid"], os.fdopen(read_end, "rb"))

    def close(self) -> None:
        """End the server; the processes that it forked continue."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._control = ours
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "stepscope.processes.fork_server"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # the process started instead prints the error
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=dict(environment),
            )
        try:
            answer = self._answer(_IMPORT_WITHIN_S)
        except OSError as error:
            answer = {"error": str(error) or type(error).__name__}
        available_bytes = host.available_bytes()
        if "error" in answer:
            self._disable(answer["error"])
        elif available_bytes and answer["private_bytes"] > _MOST_OF_MEMORY * available_bytes:
            self._disable("the fork server would take memory that trainings may need")

    def _answer(self, within_s: float) -> ForkAnswer:
        assert self._control is not None
        self._control.settimeout(within_s)
        data = self._control.recv(65536)
        if not data:
            raise ConnectionError("the socket is closed")
        answer: ForkAnswer = json.loads(data)
        return answer

    def _disable(self, reason: str) -> None:
        self.reason = reason
        self.close()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Become the parent of descendants whose own parent ends meanwhile."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

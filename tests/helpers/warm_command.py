"""A command as a process of its own that does not wait for torch.

    python -m warm_command STDOUT ARGS

It is forked from the warm process of the tests (`warm_start`), and forks a copy of itself for what
it starts. Parents, sessions, signals and streams are as ever.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import warm_start

from stepscope.cli.main import main
from stepscope.processes import fork_server
from stepscope.supervisor.warm_start import ForkServer


class WarmProcess(subprocess.Popen[str]):
    """A `subprocess.Popen` of `python -m stepscope`."""

    def _execute_child(self, args: list[str], *options: Any) -> None:
        folder, environment = options[4:6]
        stdin, keeps_in, keeps_out, stdout, keeps_err, stderr = options[9:15]
        here = Path.cwd()
        os.chdir(folder)
        try:
            forked = warm_start._WARM.fork(
                "warm_command",
                [str(stdout), *args[3:]],
                environment,
                stdin=None if stdin == -1 else stdin,
                stderr=stderr,
                pass_fds=[stdout],
            )
        finally:
            os.chdir(here)
        if forked is None:
            super()._execute_child(args, *options)
            return
        forked.stdout.close()
        self.pid, self._child_created = forked.pid, True
        for ours, theirs in ((keeps_in, stdin), (keeps_out, stdout), (keeps_err, stderr)):
            if ours != -1:
                os.close(theirs)


def fork_server_of_this_process() -> ForkServer:
    """Fork a copy of this process that forks others."""
    server = ForkServer()
    server._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        server._control.close()
        try:
            fork_server.main([str(theirs.fileno()), str(parent)])
        finally:
            os._exit(0)
    theirs.close()
    server._answer(within_s=30)
    return server


if __name__ == "__main__":
    os.dup2(int(sys.argv[1]), 1)
    os.close(int(sys.argv[1]))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))
    warm_start._WARM.server = fork_server_of_this_process()
    warm_start._WARM.environment = warm_start._at_start(os.environ)
    with warm_start.warm_start():
        main(sys.argv[2:])

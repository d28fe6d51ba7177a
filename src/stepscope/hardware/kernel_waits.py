"""What the threads of a process wait for, as the kernel tells: without the process's help.

Linux only. The system call and its file need the permission to trace the process, which a parent
has; the name of the kernel's function (`wchan`) needs less.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass

from stepscope.hardware.procfs import bytes_of, stat_fields
from stepscope.records.types import KernelWait

PIPE, SOCKET, LOCK, SLEEP, DISK = "pipe", "socket", "lock", "sleep", "disk"
CHILD, TERMINAL, STOPPED, ENDED = "child process", "terminal", "stopped", "ended"

_MOST_THREADS = 256

# Numbers of system calls that wait: <asm/unistd.h> of either architecture.
_NUMBERS = {
    "x86_64": (
        "0 read 1 write 7 poll 17 pread 18 pwrite 19 readv 20 writev 23 select 35 nanosleep "
        "42 connect 43 accept 44 sendto 45 recvfrom 46 sendmsg 47 recvmsg 61 wait4 72 fcntl "
        "73 flock 74 fsync 202 futex 230 clock_nanosleep 232 epoll_wait 247 waitid 270 pselect "
        "271 ppoll 281 epoll_wait 288 accept"
    ),
    "aarch64": (
        "22 epoll_wait 25 fcntl 32 flock 63 read 64 write 65 readv 66 writev 67 pread 68 pwrite "
        "72 pselect 73 ppoll 82 fsync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep "
        "202 accept 203 connect 206 sendto 207 recvfrom 211 sendmsg 212 recvmsg 242 accept "
        "260 wait4"
    ),
}
_words = _NUMBERS.get(platform.machine(), "").split()
_CALLS = dict(zip(_words[::2], _words[1::2], strict=True))
_ON_A_FILE = ("read", "write", "pread", "pwrite", "readv", "writev")
_WAITS_OF_CALLS = {
    **dict.fromkeys(("futex", "flock", "fcntl"), LOCK),
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), SLEEP),
    **dict.fromkeys(("connect", "accept", "sendto", "sendmsg", "recvfrom", "recvmsg"), SOCKET),
    **dict.fromkeys(("wait4", "waitid"), CHILD),
    "fsync": DISK,
}
# Parts of the names of the kernel's functions, for where the system call cannot be read.
_WAITS_OF_FUNCTIONS = (
    ("pipe", PIPE),
    ("futex", LOCK),
    ("flock", LOCK),
    ("nanosleep", SLEEP),
    ("do_wait", CHILD),
    ("n_tty", TERMINAL),
    ("unix_stream", SOCKET),
    ("sk_wait", SOCKET),
    ("inet_csk", SOCKET),
    ("io_schedule", DISK),
    ("folio_wait", DISK),
    ("rpc_wait", DISK),
)


@dataclass(frozen=True)
class _Waiting:
    """One thread in the kernel."""

    name: str
    state: str
    function: str | None
    call: str | None
    target: str | None

    def waits_for(self) -> str | None:
        if self.state in "Tt":
            return STOPPED
        if self.state == "Z":
            return ENDED
        if self.call in _ON_A_FILE and self.target is not None:
            return _kind_of_file(self.target)
        if self.call in _WAITS_OF_CALLS:
            return _WAITS_OF_CALLS[self.call]
        function = self.function or ""
        found = next((kind for part, kind in _WAITS_OF_FUNCTIONS if part in function), None)
        return DISK if found is None and self.state == "D" else found


def process_state(pid: int) -> str | None:
    """Return the state of a process, `R`, `S`, `D`, `T`, `Z`; None when it has ended."""
    fields = stat_fields(f"/proc/{pid}")
    return fields[0].decode() if fields else None


def kernel_waits(pid: int) -> list[KernelWait]:
    """Describe the threads of a process: the main one first, the others counted if alike."""
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    threads = sorted(map(int, names), key=lambda thread: (thread != pid, thread))
    main, *others = [_waiting(pid, thread) for thread in threads[:_MOST_THREADS]]
    counted = [(main, 1), *Counter(others).most_common()]
    return [
        {
            "thread": waiting.name,
            "threads": count,
            "state": waiting.state,
            "waits_for": waiting.waits_for(),
            "call": waiting.call,
            "target": waiting.target,
            "function": waiting.function,
            "stack": _kernel_stack(pid) if waiting is main else None,
        }
        for waiting, count in counted
    ]


def _kernel_stack(pid: int) -> list[str] | None:
    """Return the kernel's functions that the main thread is in; None if only root may know."""
    lines = bytes_of(f"/proc/{pid}/stack").decode("ascii", "replace").splitlines()
    return [line.rpartition(" ")[2].partition("+")[0] for line in lines] or None


def _waiting(pid: int, thread: int) -> _Waiting:
    folder = f"/proc/{pid}/task/{thread}"
    fields = stat_fields(folder)
    function = bytes_of(f"{folder}/wchan").decode("ascii", "replace").strip("\0\n")
    call, target = None, None
    words = bytes_of(f"{folder}/syscall").split()
    if len(words) > 1 and words[0].isdigit():
        call = _CALLS.get(words[0].decode())
        if call in _ON_A_FILE:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")  # noqa: PTH115
            except OSError:
                target = None
    return _Waiting(
        bytes_of(f"{folder}/comm").decode("utf-8", "replace").strip(),
        fields[0].decode() if fields else "?",
        None if function in ("", "0") else function,
        call,
        target,
    )


def _kind_of_file(target: str) -> str:
    if target.startswith("pipe:"):
        return PIPE
    if target.startswith("socket:"):
        return SOCKET
    return TERMINAL if target.startswith(("/dev/tty", "/dev/pts")) else DISK

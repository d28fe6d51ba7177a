"""The cause of a hang, from stacks: what each thread waits for, what hangs, and what to do.

Library code that waits is known by its file, calls into C by the text of the line, and the rest by
what the kernel tells (`hardware.kernel_waits`).
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from stepscope.hardware.kernel_waits import (
    CHILD,
    DISK,
    ENDED,
    LOCK,
    PIPE,
    SLEEP,
    SOCKET,
    STOPPED,
    TERMINAL,
)
from stepscope.records.types import HangingProcess, KernelWait, StackFrame, ThreadStack

TRAINER, WORKER, OTHER = "trainer", "loader worker", "process"
QUEUE, CONDITION, COLLECTIVE, THREAD, IDLE = "queue", "condition", "collective", "thread", "work"

_THREAD_HEAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_LONGEST_CODE = 100
_STRINGS = re.compile(r"""(["'])(?:\\.|(?!\1).)*(?:\1|$)""")

_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib(64)?/python3[.\d]*/|^<")
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_LOADER = "torch/utils/data/dataloader.py"

# The first rule that matches one of the library's frames above the script's line.
_BY_FILE = (
    (r"torch/distributed/", "", COLLECTIVE),
    (re.escape(_LOADER), "", WORKER),
    (r"/subprocess\.py$", "wait|communicate", CHILD),
    (r"/multiprocessing/(popen_\w+|process)\.py$", "", CHILD),
    (r"/multiprocessing/queues\.py$|/queue\.py$", "", QUEUE),
    (r"/multiprocessing/connection\.py$", "", PIPE),
    (r"/(socket|ssl)\.py$|/http/client\.py$", "", SOCKET),
    (r"/threading\.py$", "join|tstate_lock", THREAD),
    (r"/threading\.py$|/concurrent/futures/|/asyncio/", "wait|result|select|_run_once", CONDITION),
    (r"/multiprocessing/synchronize\.py$", "", LOCK),
)
# By the text of the innermost line.
_BY_CODE = (
    (r"\bwith\b.*(lock|mutex|sem)|\.acquire\(|\bacquire\(", LOCK),
    (r"\.sleep\(", SLEEP),
    (r"\.recv\w*\(|\.accept\(|\.connect\(|\.sendall\(", SOCKET),
    (r"\b\w*(queue|q)\w*\.(get|put)\(", QUEUE),
    (r"\bwaitpid\(", CHILD),
    (r"\.join\(", THREAD),
    (r"\.wait\w*\(", CONDITION),
    (r"\binput\(|\bset_trace\(|\bbreakpoint\(", TERMINAL),
)
_PRECISE_IN_KERNEL = (PIPE, SOCKET, TERMINAL, DISK, CHILD)


def parse_stacks(text: str) -> list[ThreadStack]:
    """Read what `faulthandler` wrote: the main thread last; stepscope's own threads left out."""
    threads: list[ThreadStack] = []
    for line in text.splitlines():
        if (head := _THREAD_HEAD.match(line)) is not None:
            threads.append({"name": head[1], "waits_for": None, "frames": []})
        elif (frame := _FRAME.fullmatch(line)) is not None and threads:
            threads[-1]["frames"].append(_frame(frame[1], int(frame[2]), frame[3]))
    for thread in threads:
        thread["frames"] = _without_trainer(thread["frames"])
    kept = [thread for thread in threads if thread["frames"] and not _is_ours(thread)]
    if kept:
        kept[-1]["name"] = kept[-1]["name"] or "main"
    return kept


def _frame(file: str, line: int, function: str) -> StackFrame:
    code = _STRINGS.sub("'...'", linecache.getline(file, line).strip())  # it may be a secret
    shown = code[:_LONGEST_CODE] or None
    return {"file": file, "line": line, "function": function, "code": shown}


def _without_trainer(frames: list[StackFrame]) -> list[StackFrame]:
    """Return the frames of a forked worker without those that it has from the trainer."""
    loops = (n for n, frame in enumerate(frames) if frame["file"].endswith(_WORKER_LOOP))
    return frames[: next(loops, len(frames)) + 1]


def _is_ours(thread: ThreadStack) -> bool:
    return "/stepscope/trace/" in thread["frames"][-1]["file"]


def thread_waits_for(thread: ThreadStack, kernel: KernelWait | None = None) -> str | None:
    """Return what a thread waits for; None if that is unknown or it runs.

    `kernel` is what the kernel tells of this thread, if it is known which of its threads it is.
    """
    frames = thread["frames"]
    library = list(takewhile(lambda frame: _is_library(frame["file"]), frames))
    if any(frame["file"].endswith(_WORKER_LOOP) for frame in library):
        return IDLE
    for file, function, kind in _BY_FILE:
        for frame in library:
            if re.search(file, frame["file"]) and re.search(function, frame["function"]):
                return kind
    in_kernel = kernel["waits_for"] if kernel is not None else None
    if in_kernel in _PRECISE_IN_KERNEL:
        return in_kernel
    if kernel is not None and kernel["state"] == "R":
        return None
    code = frames[0]["code"] or ""
    return next((kind for text, kind in _BY_CODE if re.search(text, code)), in_kernel)


def process_waits_for(process: HangingProcess) -> str | None:
    """Return what the main thread of a process waits for; None if unknown."""
    main = process["kernel"][0] if process["kernel"] else None
    if process["state"] in ("T", "t"):
        return STOPPED
    if not process["threads"]:
        return main["waits_for"] if main is not None else None
    found = thread_waits_for(process["threads"][-1], main)
    communicates = any(re.search("gloo|nccl", each["thread"]) for each in process["kernel"])
    in_backward = any("torch/autograd/" in f["file"] for f in process["threads"][-1]["frames"][:2])
    return COLLECTIVE if found == LOCK and communicates and in_backward else found


def _is_library(file: str) -> bool:
    return _LIBRARY.search(file) is not None or "/stepscope/" in file


def script_frames(thread: ThreadStack) -> Iterator[StackFrame]:
    """Yield the frames in the script's own code, the innermost first."""
    return (frame for frame in thread["frames"] if not _is_library(frame["file"]))


def format_place(frame: StackFrame) -> str:
    """Return `train.py:41`."""
    return f"{Path(frame['file']).name}:{frame['line']}"


# --- What hangs


class HangCause(NamedTuple):
    """What hangs, in one sentence, and what to do."""

    text: str
    advice: str


def find_cause(processes: Sequence[HangingProcess]) -> HangCause:
    """Return the cause of a hang; the trainer is the first of the processes."""
    trainer, *others = processes
    stopped = [each for each in others if each["waits_for"] == STOPPED]
    if stopped:
        pids = " ".join(str(each["pid"]) for each in stopped)
        waits = ", and the trainer waits for it" if trainer["waits_for"] == WORKER else ""
        return HangCause(
            f"{_names(stopped).capitalize()} {'is' if len(stopped) == 1 else 'are'} stopped by a "
            f"signal (SIGSTOP){waits}.",
            f"Continue with: kill -CONT {pids}",
        )
    kind = trainer["waits_for"]
    if kind == WORKER:
        return _loader_cause([each for each in others if each["role"] == WORKER])
    writers = [each for each in others if _writes_to_pipe(each)]
    if writers and kind in (CHILD, PIPE, THREAD, CONDITION):
        return HangCause(
            f"The trainer waits{_at(trainer)} for {_names(writers)}, blocked in a write to a full "
            "pipe that nobody reads.",
            "Read the output with communicate(), or send it to a file or to subprocess.DEVNULL.",
        )
    if kind == CHILD and others:
        return HangCause(
            f"The trainer waits{_at(trainer)} for the end of {_names(others)}.",
            "See what that process waits for below; wait for it with a timeout.",
        )
    if kind == PIPE and _writes_to_pipe(trainer):
        return HangCause(
            f"The trainer waits{_at(trainer)} to write to a pipe that is full: nobody reads it.",
            "Read the other end of the pipe, or close it; read output with communicate().",
        )
    return _cause_of_kind(trainer, kind)


def _loader_cause(workers: Sequence[HangingProcess]) -> HangCause:
    waiting = "The trainer waits for a batch"
    if not workers:
        return HangCause(
            f"{waiting}, and no loader worker is left to make it.",
            "Set num_workers=0 to see the worker's error in the script itself.",
        )
    held = [each for each in workers if each["waits_for"] != IDLE]
    if not held:
        return HangCause(
            f"{waiting}, and all loader workers wait for work: a batch was lost on its way.",
            "Set num_workers=0 to find out whether the loader's own code swallows an error.",
        )
    ended = [each for each in held if each["waits_for"] == ENDED]
    if ended:
        return HangCause(
            f"{waiting}, and {_names(ended)} {'has' if len(ended) == 1 else 'have'} ended.",
            "Set num_workers=0 to see the worker's error in the script itself.",
        )
    kind = held[0]["waits_for"]
    same = [each for each in held if each["waits_for"] == kind]
    verb = "waits" if len(same) == 1 else "wait"
    if kind == LOCK:
        return HangCause(
            f"{waiting}, and {_names(same)} {verb} for a lock{_at(same[0])} that nothing in "
            "this process releases: it was probably held when the process was forked.",
            "Start workers with DataLoader(multiprocessing_context='spawn'), or create the lock "
            "in worker_init_fn.",
        )
    if kind is None:
        return HangCause(
            f"{waiting} that {_names(same)} still {'makes' if len(same) == 1 else 'make'}"
            f"{_at(same[0])}.",
            "Look at the samples that this worker reads; DataLoader(timeout=...) ends the wait.",
        )
    return HangCause(
        f"{waiting}, and {_names(same)} {verb} for {_article(kind)}{_at(same[0])}.",
        "Give that call a timeout; set num_workers=0 to see it in the script itself.",
    )


def _cause_of_kind(trainer: HangingProcess, kind: str | None) -> HangCause:
    at = _at(trainer)
    alone = len(trainer["threads"]) == 1
    if kind == COLLECTIVE:
        call = _collective(trainer)
        return HangCause(
            f"The trainer waits{at} in {call} for other ranks: one of them has ended, hangs, or "
            "makes fewer calls.",
            "Compare the stacks of all ranks; every rank must make the same calls "
            "(drop_last=True). Set timeout= in init_process_group.",
        )
    if kind == QUEUE:
        nobody = ", and no other thread is left to use it" if alone else ""
        return HangCause(
            f"The trainer waits{at} for a queue{nobody}.",
            "Check that the other side of the queue is alive; use get(timeout=...).",
        )
    if kind == LOCK:
        nobody = ", and no other thread is left to release it" if alone else ""
        return HangCause(
            f"The trainer waits{at} for a lock{nobody}.",
            "Look for the thread that holds it in the stacks; release locks with `with`.",
        )
    advice = {
        CONDITION: "Look for the thread that should notify it; wait with a timeout.",
        THREAD: "Look at the stack of that thread; join it with a timeout.",
        SOCKET: "Check the other side of the connection; set a timeout on the socket.",
        PIPE: "Check that the process at the other end of the pipe is alive.",
        SLEEP: "Shorten the sleep, or raise --hang-after if it is intended.",
        DISK: "Check the file system: a network mount may not respond.",
    }
    if kind in advice:
        return HangCause(f"The trainer waits{at} for {_article(kind)}.", advice[kind])
    return HangCause(
        f"The trainer is{at or ' in a library'} and completes no step.",
        "Look at the stacks; raise --hang-after if this part of the script takes that long.",
    )


def _collective(trainer: HangingProcess) -> str:
    """Return the name of the collective that a trainer is in."""
    names = (
        frame["function"]
        for frame in trainer["threads"][-1]["frames"]
        if "torch/distributed/" in frame["file"]
    )
    known = [name for name in names if name not in ("wrapper", "inner")]
    return known[-1] if known else "the allreduce of its backward pass"


def _writes_to_pipe(process: HangingProcess) -> bool:
    main = process["kernel"][0] if process["kernel"] else None
    if main is None or main["waits_for"] != PIPE:
        return False
    return "write" in (main["call"] or main["function"] or "")


def _article(kind: str) -> str:
    return {
        THREAD: "the end of a thread",
        SLEEP: "a sleep to end",
        DISK: "a file",
        CHILD: "a child process",
        TERMINAL: "input from the terminal",
    }.get(kind, f"a {kind}")


def _at(process: HangingProcess) -> str:
    """Return the innermost place in the script, ` at data.py:12`."""
    frames = script_frames(process["threads"][-1]) if process["threads"] else iter(())
    place = next(frames, None)
    return "" if place is None else f" at {format_place(place)}"


def _names(processes: Sequence[HangingProcess]) -> str:
    role = processes[0]["role"]
    pids = ", ".join(str(each["pid"]) for each in processes[:4])
    more = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
    if role != WORKER and len(processes) == 1:
        return f"{role} {pids} ({processes[0]['command']})"
    return f"{role}{'s' * (len(processes) > 1)} {pids}{more}".replace("processs", "processes")

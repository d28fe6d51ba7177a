"""The cause of a hang, from stacks: what each thread waits for, what hangs, and what to do.

Library code that waits is known by its file, calls into C by the text of the line, and the rest by
what the kernel tells (`hardware.kernel_waits`).
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

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
WORKER_LOOP = "torch/utils/data/_utils/worker.py"
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
    in_worker = False  # the frames that follow are the trainer's, from before the fork
    for line in text.splitlines():
        if (head := _THREAD_HEAD.match(line)) is not None:
            threads.append({"name": head[1], "waits_for": None, "frames": []})
            in_worker = False
        elif threads and not in_worker and (found := _FRAME.fullmatch(line)) is not None:
            file, number, function = found[1], int(found[2]), found[3]
            code = _STRINGS.sub("'...'", linecache.getline(file, number).strip())  # may be a secret
            shown = code[:_LONGEST_CODE] or None
            frame: StackFrame = {"file": file, "line": number, "function": function, "code": shown}
            threads[-1]["frames"].append(frame)
            in_worker = file.endswith(WORKER_LOOP)
    kept = [
        thread
        for thread in threads
        if thread["frames"] and "/stepscope/trace/" not in thread["frames"][-1]["file"]
    ]
    if kept:
        kept[-1]["name"] = kept[-1]["name"] or "main"
    return kept


def thread_waits_for(thread: ThreadStack, kernel: KernelWait | None = None) -> str | None:
    """Return what a thread waits for; None if that is unknown or it runs.

    `kernel` is what the kernel tells of this thread, if it is known which of its threads it is.
    """
    frames = thread["frames"]
    library = list(takewhile(lambda frame: _is_library(frame["file"]), frames))
    if any(frame["file"].endswith(WORKER_LOOP) for frame in library):
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
    main = _main_thread_in_kernel(process)
    if process["state"] in ("T", "t"):
        return STOPPED
    if not process["threads"]:
        return main["waits_for"] if main is not None else None
    found = thread_waits_for(process["threads"][-1], main)
    communicates = any(re.search("gloo|nccl", each["thread"]) for each in process["kernel"])
    in_backward = any("torch/autograd/" in f["file"] for f in process["threads"][-1]["frames"][:2])
    return COLLECTIVE if found == LOCK and communicates and in_backward else found


def _main_thread_in_kernel(process: HangingProcess) -> KernelWait | None:
    return process["kernel"][0] if process["kernel"] else None


def _is_library(file: str) -> bool:
    return _LIBRARY.search(file) is not None or "/stepscope/" in file


def script_frames(thread: ThreadStack) -> list[StackFrame]:
    """Return the frames in the script's own code, the innermost first."""
    return [frame for frame in thread["frames"] if not _is_library(frame["file"])]


def format_place(frame: StackFrame) -> str:
    """Return `train.py:41`."""
    return f"{Path(frame['file']).name}:{frame['line']}"


# --- What hangs

_ADVICE = {
    COLLECTIVE: (
        "Compare the stacks of all ranks; every rank must make the same calls (drop_last=True). "
        "Set timeout= in init_process_group."
    ),
    QUEUE: "Check that the other side of the queue is alive; use get(timeout=...).",
    LOCK: "Look for the thread that holds it in the stacks; release locks with `with`.",
    CONDITION: "Look for the thread that should notify it; wait with a timeout.",
    THREAD: "Look at the stack of that thread; join it with a timeout.",
    SOCKET: "Check the other side of the connection; set a timeout on the socket.",
    PIPE: "Check that the process at the other end of the pipe is alive.",
    SLEEP: "Shorten the sleep, or raise --hang-after if it is intended.",
    DISK: "Check the file system: a network mount may not respond.",
}
_SEE_THE_ERROR = "Set num_workers=0 to see the worker's error in the script itself."


def find_cause(processes: Sequence[HangingProcess]) -> tuple[str, str]:
    """Return what hangs, in one sentence, and what to do; the trainer is the first process."""
    trainer, *others = processes
    kind, at = trainer["waits_for"], _at(trainer)
    stopped = [each for each in others if each["waits_for"] == STOPPED]
    if stopped:
        pids = " ".join(str(each["pid"]) for each in stopped)
        waits = ", and the trainer waits for it" if kind == WORKER else ""
        return (
            f"{_names(stopped).capitalize()} {'is' if len(stopped) == 1 else 'are'} stopped by a "
            f"signal (SIGSTOP){waits}.",
            f"Continue with: kill -CONT {pids}",
        )
    if kind == WORKER:
        workers = [each for each in others if each["role"] == WORKER]
        what, advice = _loader_cause(workers)
        return f"The trainer waits for a batch{what}.", advice
    writers = [each for each in others if _writes_to_pipe(each)]
    if writers and kind in (CHILD, PIPE, THREAD, CONDITION):
        return (
            f"The trainer waits{at} for {_names(writers)}, blocked in a write to a full "
            "pipe that nobody reads.",
            "Read the output with communicate(), or send it to a file or to subprocess.DEVNULL.",
        )
    if kind == CHILD and others:
        return (
            f"The trainer waits{at} for the end of {_names(others)}.",
            "See what that process waits for below; wait for it with a timeout.",
        )
    if kind == PIPE and _writes_to_pipe(trainer):
        return (
            f"The trainer waits{at} to write to a pipe that is full: nobody reads it.",
            "Read the other end of the pipe, or close it; read output with communicate().",
        )
    if kind not in _ADVICE:
        return (
            f"The trainer is{at or ' in a library'} and completes no step.",
            "Look at the stacks; raise --hang-after if this part of the script takes that long.",
        )
    what = f"for {_with_article(kind)}"
    if kind == COLLECTIVE:
        what = f"in {_collective(trainer)} for other ranks: one of them has ended, hangs, or makes "
        what += "fewer calls"
    elif kind in (QUEUE, LOCK) and len(trainer["threads"]) == 1:
        use = "use" if kind == QUEUE else "release"
        what += f", and no other thread is left to {use} it"
    return f"The trainer waits{at} {what}.", _ADVICE[kind]


def _loader_cause(workers: Sequence[HangingProcess]) -> tuple[str, str]:
    """Return why the trainer gets no batch, as the end of a sentence, and what to do."""
    if not workers:
        return ", and no loader worker is left to make it", _SEE_THE_ERROR
    held = [each for each in workers if each["waits_for"] != IDLE]
    if not held:
        return (
            ", and all loader workers wait for work: a batch was lost on its way",
            "Set num_workers=0 to find out whether the loader's own code swallows an error.",
        )
    ended = [each for each in held if each["waits_for"] == ENDED]
    kind = ENDED if ended else held[0]["waits_for"]
    same = [each for each in held if each["waits_for"] == kind]
    names, at, is_one = _names(same), _at(same[0]), len(same) == 1
    if kind == ENDED:
        return f", and {names} {'has' if is_one else 'have'} ended", _SEE_THE_ERROR
    if kind is None:
        return (
            f" that {names} still {'makes' if is_one else 'make'}{at}",
            "Look at the samples that this worker reads; DataLoader(timeout=...) ends the wait.",
        )
    waits = f", and {names} {'waits' if is_one else 'wait'} for {_with_article(kind)}{at}"
    if kind == LOCK:
        return (
            f"{waits} that nothing in this process releases: it was probably held when the process "
            "was forked",
            "Start workers with DataLoader(multiprocessing_context='spawn'), or create the lock "
            "in worker_init_fn.",
        )
    return waits, "Give that call a timeout; set num_workers=0 to see it in the script itself."


def _collective(trainer: HangingProcess) -> str:
    """Return the name of the collective that a trainer is in."""
    names = [
        frame["function"]
        for frame in trainer["threads"][-1]["frames"]
        if "torch/distributed/" in frame["file"] and frame["function"] not in ("wrapper", "inner")
    ]
    return names[-1] if names else "the allreduce of its backward pass"


def _writes_to_pipe(process: HangingProcess) -> bool:
    main = _main_thread_in_kernel(process)
    if main is None or main["waits_for"] != PIPE:
        return False
    return "write" in (main["call"] or main["function"] or "")


def _with_article(kind: str) -> str:
    return {
        THREAD: "the end of a thread",
        SLEEP: "a sleep to end",
        DISK: "a file",
        CHILD: "a child process",
        TERMINAL: "input from the terminal",
    }.get(kind, f"a {kind}")


def _at(process: HangingProcess) -> str:
    """Return the innermost place in the script, ` at data.py:12`."""
    frames = script_frames(process["threads"][-1]) if process["threads"] else []
    return f" at {format_place(frames[0])}" if frames else ""


def _names(processes: Sequence[HangingProcess]) -> str:
    role, is_one = processes[0]["role"], len(processes) == 1
    pids = ", ".join(str(each["pid"]) for each in processes[:4])
    more = f" and {len(processes) - 4} more" if len(processes) > 4 else ""
    if role == WORKER:
        return f"{role}{'' if is_one else 's'} {pids}{more}"
    return f"{role} {pids} ({processes[0]['command']})" if is_one else f"processes {pids}{more}"

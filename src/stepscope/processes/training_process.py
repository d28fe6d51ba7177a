"""The training process: `python -m stepscope.processes.training_process`.

It writes steps, epochs, records, events and the checkpoint into the run folder, sends messages (one
JSON object a line; `RunMessage` in `records.types`) to the parent, and leaves `run.json` to it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import (
    DISK_FULL_ERRNOS,
    MissingExtraError,
    StepscopeError,
    address_space_limit,
    disk_full,
    is_out_of_memory,
    limit_reached,
)
from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.hardware.process_memory import peak_bytes
from stepscope.hardware.stack_dump import STACKS_FILE, install_stack_dump
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import OutcomeMessage, RunMessage, TrainingResult
from stepscope.train.stop_request import Send, StopRequest

_INTERNAL = 70
_LOST_PEER = "lost another process of the training"
_STATUS_BY_EXIT_CODE = {4: schema.OUT_OF_MEMORY, 130: schema.INTERRUPTED}


@dataclass(frozen=True)
class ProcessOptions:
    """Options of a training process that its parent sets and that are no settings of the run.

    force: start even if the forecast exceeds the available memory.
    forecast: forecast the memory first, which takes seconds.
    checkpoint: write checkpoints; without them a stopped run starts again.
    distributed: join other ranks, with the environment variables of torchrun.
    hang_after_s: report a hang after this long without progress; 0: never.
    on_hang: what its parent does then, `warn` or `stop`.
    """

    force: bool = False
    forecast: bool = True
    checkpoint: bool = True
    distributed: bool = False
    hang_after_s: float = 0.0
    on_hang: str = "warn"

    def to_json(self) -> str:
        """Return the options as an argument of the process."""
        return json.dumps(vars(self))

    @staticmethod
    def from_json(text: str) -> ProcessOptions:
        """Return the options of an argument."""
        return ProcessOptions(**json.loads(text))


DEFAULT_OPTIONS = ProcessOptions()


def main(argv: list[str]) -> int:
    """Run the training of a folder; report the outcome to the parent.

    The arguments are the folder, the pipe for messages, the parent, the origin and the options.
    """
    path, pipe, parent, origin, options = argv
    die_with_parent(int(parent))
    warnings.showwarning = _show_warning
    stop = StopRequest()
    stop.listen()
    asked = ProcessOptions.from_json(options)
    if asked.hang_after_s > 0:
        install_stack_dump(Path(path) / STACKS_FILE)
    with os.fdopen(int(pipe), "w", encoding="utf-8", buffering=1) as messages:

        def send(message: RunMessage) -> None:
            messages.write(json.dumps(message) + "\n")

        folder = RunFolder(Path(path))
        with folder.followed():
            outcome = _run(folder, int(origin), stop, send, asked)
        send({**outcome, "main_peak_bytes": peak_bytes()})
    return outcome["exit_code"]


def _show_warning(
    message: Warning | str, category: type[Warning], *where: object, **more: object
) -> None:
    """Print a library's warning as one line; the parent shows it."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _run(
    folder: RunFolder,
    origin_ns: int,
    stop: StopRequest,
    send: Send,
    options: ProcessOptions,
) -> OutcomeMessage:
    """Run the training and return its outcome."""
    result: TrainingResult = {}
    error: Exception | None = None
    try:
        # Importing torch makes no garbage; collecting takes a fifth of the import time.
        gc.disable()
        try:
            from stepscope.processes.training_session import run_session
        except ImportError as missing:
            absent = MissingExtraError(f"training ({missing})", "torch", "train")
            raise limit_reached(missing) or absent from missing
        finally:
            gc.enable()
        gc.freeze()
        result, error = run_session(folder, origin_ns, stop, send, options)
    except Exception as raised:
        error = raised
    return _outcome_of(error, result, folder, origin_ns, options)


def _outcome_of(
    error: Exception | None,
    result: TrainingResult,
    folder: RunFolder,
    origin_ns: int,
    options: ProcessOptions,
) -> OutcomeMessage:
    code, reason, trace = 0, None, None
    if error is not None:
        code, reason = _classify(error, folder, is_rank=options.distributed)
        if code == _INTERNAL and not isinstance(error, StepscopeError):
            trace = "".join(traceback.format_exception(error))
        if reason.startswith(_LOST_PEER):
            folder.add_event(schema.PEER_LOST, seconds(now_ns() - origin_ns), reason=str(error))
    status = schema.COMPLETED if code == 0 else _STATUS_BY_EXIT_CODE.get(code, schema.FAILED)
    return {
        "type": "outcome",
        "status": status,
        "reason": reason,
        "exit_code": code,
        "traceback": trace,
        "result": result,
        "main_peak_bytes": None,
    }


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _classify(error: Exception, folder: RunFolder, *, is_rank: bool) -> tuple[int, str]:
    """Return the exit code and the reason of an error, whoever raised it."""
    try:
        folder.check_is_there()
    except StepscopeError as removed:
        return removed.exit_code, str(removed)
    if isinstance(error, StepscopeError):
        reason = str(error)
        if reason.startswith("Caught "):  # torch wraps it in a loader worker's traceback
            reason = reason.strip().rpartition("\n")[2].partition(": ")[2]
        return error.exit_code, reason
    if is_rank:
        from stepscope.train.distributed import is_lost_peer

        if is_lost_peer(error):
            return 5, f"{_LOST_PEER}: {_first_line(error)}"
    if is_out_of_memory(f"{type(error).__name__}: {error}"):
        return 4, f"out of memory{address_space_limit()}: {_first_line(error)}".rstrip(": ")
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        full = disk_full(error, str(error.filename or folder.path))
        return full.exit_code, str(full)
    if (limit := limit_reached(error)) is not None:
        return limit.exit_code, str(limit)
    model = str(folder.read_info()["spec"]["model"])
    if ":" in model:
        from stepscope.models.user_model import describe_user_error

        theirs = describe_user_error(error, model)
        if theirs is not None:
            return 2, f"model {model} failed in training: {theirs}"
    return _INTERNAL, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread that the model left running would keep the process alive.
    os._exit(code)

"""The training process, started by the supervising parent.

Started with `python -m stepscope.processes.training_process`.

It writes steps, epochs, records, events and the checkpoint into the run folder, sends messages (one
JSON object a line) to the parent, and leaves `run.json` to it. Messages:

    forecast        the memory forecast
    weights         the pretrained weights that were loaded
    download        progress of a download
    ready           the resolved spec, the environment and the preparation time
    progress        epoch, step, loss and throughput
    device_memory   the memory in use on the device
    testing         the start of an evaluation
    epoch           the row of an epoch
    workers         the loader continues with fewer workers: from, to and the reason
    outcome         status, reason, exit code, instrument cost, layer times, and the peak memory of
                    the device and the host
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from stepscope.errors import DISK_FULL_ERRNOS, MissingExtraError, StepscopeError, disk_full
from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.hardware.process_memory import peak_bytes
from stepscope.meter.clock import now_ns, seconds
from stepscope.processes.process_options import ProcessOptions
from stepscope.records import schema
from stepscope.records.run_folder import RunFolder
from stepscope.train.stop_request import Send, StopRequest

_STATUS_BY_EXIT_CODE = {4: schema.OUT_OF_MEMORY, 130: schema.INTERRUPTED}


def main(argv: list[str]) -> int:
    """Run the training of a folder; report the outcome to the parent."""
    parser = argparse.ArgumentParser(prog="stepscope.processes.training_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--origin-ns", type=int, required=True)
    ProcessOptions.add_to(parser)
    args = parser.parse_args(argv)
    die_with_parent(args.parent)
    warnings.showwarning = _show_warning
    stop = StopRequest()
    stop.listen()
    with os.fdopen(args.messages, "w", encoding="utf-8", buffering=1) as messages:

        def send(message: dict[str, Any]) -> None:
            messages.write(json.dumps(message) + "\n")

        folder = RunFolder(args.folder)
        outcome = _outcome_of(folder, args.origin_ns, stop, send, ProcessOptions.of(args))
        send({**outcome, "main_peak_bytes": peak_bytes()})
    return int(outcome["exit_code"])


def _show_warning(
    message: Warning | str, category: type[Warning], *where: object, **more: object
) -> None:
    """Print a library's warning as one line; the parent shows it."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _outcome_of(
    folder: RunFolder,
    origin_ns: int,
    stop: StopRequest,
    send: Send,
    options: ProcessOptions,
) -> dict[str, Any]:
    """Run the training and return its outcome."""
    closing: dict[str, Any] = {}
    try:
        # Importing torch makes no garbage; collecting takes a fifth of the import time.
        gc.disable()
        try:
            from stepscope.processes.training_session import run_session
        except ImportError as error:
            raise MissingExtraError(f"training ({error})", "torch", "train") from error
        finally:
            gc.enable()
        gc.freeze()
        run_session(folder, origin_ns, stop, send, closing, options)
    except StepscopeError as error:
        return {**_ended(error.exit_code, _without_worker(str(error))), **closing}
    except Exception as error:
        if options.distributed and (lost := _lost_peer(error)):
            folder.add_event(schema.PEER_LOST, seconds(now_ns() - origin_ns), reason=str(error))
            return {**_ended(5, lost), **closing}
        return {**_ended_by(error, folder), **closing}
    return {**_ended(0, None), **closing}


def _without_worker(message: str) -> str:
    """Return the message of an error that torch wrapped in a loader worker's traceback."""
    if not message.startswith("Caught "):
        return message
    return message.strip().rpartition("\n")[2].partition(": ")[2]


def _lost_peer(error: Exception) -> str | None:
    """Return the reason if the error means that another rank has exited, otherwise None."""
    from stepscope.train.distributed import is_lost_peer

    if not is_lost_peer(error):
        return None
    first_line = str(error).strip().partition("\n")[0]
    return f"another process of the training was lost: {first_line}"


def _ended_by(error: Exception, folder: RunFolder) -> dict[str, Any]:
    """Classify an error: out of memory, machine limits, the user's model, or internal."""
    first_line = str(error).strip().partition("\n")[0]
    if _is_out_of_memory(error):
        return _ended(4, f"out of memory: {first_line}".rstrip(": "))
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        full = disk_full(error, str(error.filename or folder.path))
        return _ended(full.exit_code, str(full))
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
        return _ended(5, f"{error}: this machine's limits (ulimit) are too low for these settings")
    model = str(folder.read_info()["spec"]["model"])
    if ":" in model:
        from stepscope.models.user_model import describe_their_failure

        theirs = describe_their_failure(error, model)
        if theirs is not None:
            return _ended(2, f"model {model} failed in training: {theirs}")
    return _fault(error)


def _ended(exit_code: int, reason: str | None) -> dict[str, Any]:
    status = _STATUS_BY_EXIT_CODE.get(exit_code, schema.FAILED)
    return {
        "type": "outcome",
        "status": schema.COMPLETED if exit_code == 0 else status,
        "reason": reason,
        "exit_code": exit_code,
    }


def _fault(error: Exception) -> dict[str, Any]:
    """Return the outcome of an internal error, with its traceback for the record."""
    outcome = _ended(70, f"{type(error).__name__}: {error}")
    return {**outcome, "traceback": traceback.format_exc()}


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out: torch raises a RuntimeError for that on a CPU."""
    name, text = type(error).__name__, str(error)
    phrases = ("can't allocate memory", "out of memory")
    return name in ("OutOfMemoryError", "MemoryError") or any(
        each in text.lower() for each in phrases
    )


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread that the model left running would keep the process alive.
    os._exit(code)

"""The training process: `python -m stepscope.train.child`, started by the supervising parent.

It writes steps, epochs, records, events and the checkpoint into the run folder, sends messages (one
JSON object a line) to the parent, and leaves `run.json` to it. Messages:

    ready      the resolved spec, the environment, how the data came
    progress   how far it has come; epoch: an epoch's row
    outcome    status, reason, exit code, what the instrument cost
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stepscope.errors import DISK_FULL_ERRNOS, MissingExtraError, StepscopeError, disk_full
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog
from stepscope.records.folder import RunFolder
from stepscope.spec.load import validate
from stepscope.train.lifetime import StopRequest, die_with_parent

Send = Callable[[dict[str, Any]], None]

_STATUS_BY_EXIT_CODE = {4: schema.OUT_OF_MEMORY, 130: schema.INTERRUPTED}


def main(argv: list[str]) -> int:
    """Run the training that the arguments name; tell the parent how it ended."""
    parser = argparse.ArgumentParser(prog="stepscope.train.child")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--origin-ns", type=int, required=True)
    args = parser.parse_args(argv)
    die_with_parent(args.parent)
    stop = StopRequest()
    stop.listen()
    with os.fdopen(args.messages, "w", encoding="utf-8", buffering=1) as messages:

        def send(message: dict[str, Any]) -> None:
            messages.write(json.dumps(message) + "\n")

        outcome = _outcome_of(RunFolder(args.folder), args.origin_ns, stop, send)
        send(outcome)
    return int(outcome["exit_code"])


def _outcome_of(folder: RunFolder, origin_ns: int, stop: StopRequest, send: Send) -> dict[str, Any]:
    """Train, and turn however that ends into an outcome."""
    closing: dict[str, Any] = {}
    try:
        _train(folder, origin_ns, stop, send, closing)
    except StepscopeError as error:
        return {**_ended(error.exit_code, str(error)), **closing}
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            full = disk_full(error, str(error.filename or folder.path))
            return {**_ended(full.exit_code, str(full)), **closing}
        return {**_fault(error), **closing}
    except MemoryError as error:
        return {**_ended(4, f"out of memory: {error}".rstrip(": ")), **closing}
    except Exception as error:
        if _is_out_of_memory(error):
            reason = str(error).strip().splitlines()[0]
            return {**_ended(4, f"out of memory: {reason}"), **closing}
        return {**_fault(error), **closing}
    return {**_ended(0, None), **closing}


def _ended(exit_code: int, reason: str | None) -> dict[str, Any]:
    status = _STATUS_BY_EXIT_CODE.get(exit_code, schema.FAILED)
    return {
        "type": "outcome",
        "status": schema.COMPLETED if exit_code == 0 else status,
        "reason": reason,
        "exit_code": exit_code,
    }


def _fault(error: Exception) -> dict[str, Any]:
    """Describe what nobody foresaw; its traceback goes into the record, not onto the screen."""
    outcome = _ended(70, f"{type(error).__name__}: {error}")
    return {**outcome, "traceback": traceback.format_exc()}


def _is_out_of_memory(error: Exception) -> bool:
    """Recognise how torch says so: an error of its own on a GPU, a RuntimeError on a CPU."""
    name, text = type(error).__name__, str(error)
    return name == "OutOfMemoryError" or "can't allocate memory" in text.lower()


def _train(
    folder: RunFolder, origin_ns: int, stop: StopRequest, send: Send, closing: dict[str, Any]
) -> None:
    """Build the job, take up where the folder's checkpoint left off, and train to the end."""
    spec = validate(folder.read_info()["spec"])
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("training", "torch", "train") from error
    from stepscope.measure.clock import now_ns, seconds
    from stepscope.measure.device import queue_of
    from stepscope.measure.steps import StepMeter, weigh_instrument
    from stepscope.train import checkpoint, device, job, loop
    from stepscope.train.recorder import Recorder
    from stepscope.train.rewind import forget_rows_after

    spec = device.resolve(spec)
    began = now_ns()
    built = job.build(spec)
    send(
        {
            "type": "ready",
            "spec": spec.model_dump(mode="json"),
            "environment": device.describe_torch(built.device),
            "stages": [vars(stage) for stage in built.stages],
            "preparation_s": seconds(now_ns() - began),
        }
    )
    saved = folder.path / schema.CHECKPOINT
    start = checkpoint.load(saved, built) if saved.exists() else checkpoint.Progress()
    forget_rows_after(folder.path, built.stages, start.position)
    with ExitStack() as logs:
        steps, epochs, records = (
            logs.enter_context(CsvLog(folder.path / name))
            for name in (schema.STEPS, schema.EPOCHS, schema.RECORDS)
        )
        recorder = Recorder(epochs, records, send, built.stages)
        meter = StepMeter(steps, origin_ns, queue_of(built.device), recorder.step)

        def elapsed_s() -> float:
            return seconds(now_ns() - origin_ns)

        def save(progress: checkpoint.Progress) -> None:
            for log in (steps, epochs, records):
                log.flush()
            began = now_ns()
            checkpoint.save(saved, built, progress)
            folder.add_event(
                "checkpoint",
                elapsed_s(),
                stage=progress.position.stage,
                step=progress.position.step,
                took_s=round(seconds(now_ns() - began), 6),
            )

        try:
            loop.train(built, loop.Watch(meter, recorder, stop, elapsed_s, save), start)
        finally:
            closing["instrument"] = weigh_instrument(meter)
            closing["torch_peak_bytes"] = (
                torch.cuda.max_memory_reserved(built.device)
                if built.device.type == "cuda"
                else None
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

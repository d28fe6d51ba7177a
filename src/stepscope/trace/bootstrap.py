"""Attach to the Python process of a user's script: start when it imports torch, end with it.

Nothing heavy is imported before the script imports it, so that settings which the script makes in
the environment or in torch before that take effect. Failures of the tracer are reported to the
parent process and never reach the script.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.hardware.stack_dump import STACKS_FILE, install_stack_dump
from stepscope.meter.clock import now_ns, seconds
from stepscope.records.csv_log import file_identity

if TYPE_CHECKING:
    from stepscope.records.run_folder import RunFolder
    from stepscope.records.types import (
        DeviceMemoryMessage,
        LoaderArguments,
        LoaderRecord,
        ReadyMessage,
        ScriptFinalState,
        ScriptTraceRequest,
        TraceOutcome,
    )
    from stepscope.trace.dataloader_overrides import LoaderOverrides
    from stepscope.trace.sampling_thread import Heartbeat
    from stepscope.trace.tracer import Tracer

_OUR_FOLDER = str(Path(__file__).parent)


@dataclass
class _Attachment:
    """The connection of this process to the parent that supervises it."""

    request: ScriptTraceRequest
    pipe: tuple[int, int]
    process: int = field(default_factory=os.getpid)
    trouble: Exception | None = None
    tracer: Tracer | None = None
    overrides: LoaderOverrides | None = None
    stacks: int | None = None  # the file for stacks
    heartbeat: Heartbeat | None = None
    ended: bool = False
    directory: int = -1  # the run folder, which may be renamed before torch is imported

    def __post_init__(self) -> None:
        self.directory = os.open(self.request["folder"], os.O_RDONLY)

    @property
    def folder(self) -> RunFolder:
        """The run folder, where it is now."""
        from stepscope.records.run_folder import RunFolder

        return RunFolder(Path(self.request["folder"]), self.directory)

    def begin(self) -> None:
        """Install the hooks, right after torch was imported."""
        try:
            from stepscope.trace.dataloader_overrides import LoaderOverrides
            from stepscope.trace.tracer import Tracer

            asked = self.request
            tracer = Tracer(
                self.folder.path,
                asked["origin_ns"],
                max_steps=asked["max_steps"],
                layers_steps=asked["layers"],
            )
            tracer.send = self.send
            if asked["is_trial"]:
                tracer.end_script = _exit_process
            tracer.start()
            self.tracer = tracer
            self.overrides = LoaderOverrides(asked["loader"], self._record_loader)
            self.overrides.install()
            if sys.excepthook is sys.__excepthook__:  # the script has not set one
                sys.excepthook = _show_without_our_frames
            self.send({"type": "ready", "environment": tracer.environment()})
            self._record_event("torch_ready")
            if self.stacks is not None:
                from stepscope.trace.sampling_thread import Heartbeat

                self.heartbeat = Heartbeat(self.stacks, lambda: tracer._hooks.steps)
                self.heartbeat.start()
        except Exception as error:
            self.trouble = error

    def _record_event(self, event: str, **fields: Any) -> None:
        time_s = seconds(now_ns() - self.request["origin_ns"])
        self.folder.add_event(event, time_s, **fields)

    def _record_loader(self, record: LoaderRecord) -> None:
        """Record a loader at once: the script may be killed later."""
        self._record_event("loader", **record)
        tracer = self.tracer
        if self.request["through_prefetch"] and tracer is not None and tracer.max_steps is not None:
            now: LoaderArguments = {**record["found"], **record["set"]}
            ready = now["num_workers"] * (now["prefetch_factor"] or 0)
            tracer.max_steps = max(tracer.max_steps, ready + 1)

    def end(self) -> None:
        """Write the remaining rows and send the final message. Once, and not in a forked copy."""
        if self.ended or os.getpid() != self.process:
            return
        self.ended = True
        last: ScriptFinalState = {"type": "final_state"}
        try:
            last["raised"] = _raised()
            if self.heartbeat is not None:
                self.heartbeat.stop()
            if self.overrides is not None:
                self.overrides.patches.undo()
                self.trouble = self.overrides.trouble or self.trouble
            if self.tracer is not None:
                last = {**last, **self.tracer.final_message()}
                self.trouble = self.tracer.trouble or self.trouble
                if self.tracer.batch_bytes is not None:
                    self._record_event("batch", bytes=self.tracer.batch_bytes)
        except Exception as error:
            self.trouble = error
        if self.trouble is not None:
            last = {**last, **_describe_failure(self.trouble)}
        self.send(last)

    def send(self, message: ReadyMessage | DeviceMemoryMessage | ScriptFinalState) -> None:
        """Send a message to the parent, unless the script has closed the pipe."""
        data = (json.dumps(message) + "\n").encode()
        pipe = self.request["messages"]
        with contextlib.suppress(OSError):
            while data and file_identity(pipe) == self.pipe:
                data = data[os.write(pipe, data) :]

    def forked(self) -> None:
        """Remove the hooks in a forked copy: its work is not this script's training."""
        self.ended = True
        if self.overrides is not None:
            self.overrides.patches.undo()
        if self.tracer is not None:
            self.tracer.leave_to_parent()


def attach(request: str) -> None:
    """Trace this process as the parent requested in `STEPSCOPE_TRACE`."""
    asked: ScriptTraceRequest = json.loads(request)
    if asked["parent"] != os.getppid():
        return  # a process that inherited the environment
    die_with_parent(asked["parent"])
    os.set_inheritable(asked["messages"], False)
    attachment = _Attachment(asked, file_identity(asked["messages"]))
    if asked["dumps_stacks"]:
        attachment.stacks = install_stack_dump(Path(asked["folder"]) / STACKS_FILE)
    sys.meta_path.insert(0, _AfterTorch(attachment.begin))
    atexit.register(attachment.end)
    os.register_at_fork(after_in_child=attachment.forked)
    original_exit = os._exit

    def exit_process(status: int) -> Any:
        attachment.end()
        original_exit(status)

    os._exit = exit_process


def _exit_process() -> None:
    """End the process without running the rest of the script, after flushing its output.

    The parent ends its children. Memory shared with them has a name in /dev/shm and would stay
    there, so the finalizers run first.
    """
    import multiprocessing.util

    multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]  # as at any exit
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or closed
            stream.flush()
    os._exit(0)  # the replacement above: it sends the final message


def _describe_failure(error: Exception) -> TraceOutcome:
    """Return what the parent process reports of an error of the tracer."""
    return {
        "failure": str(error) or type(error).__name__,
        "exit_code": getattr(error, "exit_code", 70),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _show_without_our_frames(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show the exception that ended the script without the tracer's frames."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _without_our_frames(each.__traceback__)
            waiting += [each.__cause__, each.__context__]
    sys.__excepthook__(kind, error, error.__traceback__)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = None
    for entry in reversed(entries):
        if not entry.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
            entry.tb_next, kept = kept, entry
    return kept


def _raised() -> str | None:
    """Describe the exception that ended the script, if any; Python keeps it for debuggers."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return None
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}".rstrip(": ")


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Call a function once, right after the first import of torch."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch with the other finders, and call the function after its loader."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader, call = spec.loader, self._call
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            call()

        loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec

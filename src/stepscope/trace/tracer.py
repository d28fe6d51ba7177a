"""The tracer: installs the hooks and flushes their events once a second.

The hooks only record events. Between two steps, once a second has passed, `RowWriter` turns them
into rows and writes them, many steps at once. This work is recorded as the tracer's own.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepscope.meter.clock import cost_amid_work_ns, now_ns, other_clock_ns, resolution_s, seconds
from stepscope.meter.device_memory import DevicePool, HostMemory, device_memory_of, host_memory
from stepscope.meter.device_timeline import keep_forever, why_no_timeline
from stepscope.meter.layer_timer import LayerWindow
from stepscope.meter.step_meter import OffBlocks
from stepscope.meter.step_rows import SECOND_NS, EpochTiming, StepRow, epoch_values
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.types import (
    CheckpointFigures,
    DeviceMemoryMessage,
    Environment,
    Instrument,
    LayerTime,
    TraceOutcome,
)
from stepscope.trace import event_buffer as e
from stepscope.trace import torch_hooks
from stepscope.trace.allreduce_hooks import AllreduceWatch
from stepscope.trace.compile_watch import CompileWatch
from stepscope.trace.cuda_graph_hooks import UNSEEN_REPLAYS
from stepscope.trace.dataloader_hooks import CPU_LEFT_OUT
from stepscope.trace.detect.row_builder import CommunicationTime, PlainRows
from stepscope.trace.detect.steps import StepDetector
from stepscope.trace.event_buffer import EventBuffer, HookState
from stepscope.trace.script_setup import SetupWatch
from stepscope.trace.stack_sampler import EpochSpan, Parts, StackSampler
from stepscope.trace.weight_watch import UPDATES_NOT_TIMED


@dataclass
class RowWriter:
    """Detect steps and epochs in recorded events and write their rows."""

    folder: Path
    origin_ns: int
    communication: CommunicationTime = field(default_factory=CommunicationTime)
    events: int = 0
    spans: list[EpochSpan] = field(default_factory=list)
    counted_samples: int | None = None  # of the step whose operations were counted

    def __post_init__(self) -> None:
        self._logs = ExitStack()
        self._steps, self._epochs = (
            self._logs.enter_context(CsvLog(self.folder / name))
            for name in (schema.STEPS, schema.EPOCHS)
        )
        self.detector = StepDetector(self, self.origin_ns, self.communication)

    def take(self, fields: list[Any]) -> None:
        """Process recorded events and write their rows."""
        # Nearly all objects created here are short-lived. With collection enabled, Python would
        # scan them and the script's objects several times, which is half of the cost.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.events += len(fields) // len(e.FIELDS)
            self.detector.take(fields)
            self._steps.flush()
            self._epochs.flush()
        finally:
            if collects:
                gc.enable()

    def finish(self) -> None:
        """End the open step and epoch, and write them."""
        self.detector.finish()
        self._logs.close()

    # calls of the detector

    def steps(self, rows: StepRow | PlainRows) -> None:
        """Write one finished step, or many."""
        if rows.detail == schema.OPERATIONS:
            row = next(iter(rows)) if isinstance(rows, PlainRows) else rows
            self.counted_samples = row.samples
        self._steps.append(rows)

    def epoch(self, split: str, timing: EpochTiming, loss: float | None) -> None:
        """Write a finished epoch or evaluation."""
        self._epochs.append(",".join(epoch_values(split, timing, loss=loss).values()))
        end_s = timing.start_s + timing.total_s + timing.evaluations_s
        self.spans.append(EpochSpan(split, timing.start_s, end_s))


# Flushing a single step takes 0.4 ms when the step has filled the caches; several take hardly more.
FLUSH_EVERY_NS = SECOND_NS

# Where the layer window opens if the length of the training is unknown, and at the latest, since an
# epoch may be very long.
LAYERS_AFTER_STEPS = 20
LAYERS_AFTER_AT_MOST = 1000


@dataclass
class Tracer:
    """The hooks of this process, and the processing of their events."""

    folder: Path
    origin_ns: int
    max_steps: int | None = None
    layers_steps: int = 0
    end_script: Callable[[], object] = sys.exit  # ends the script after `max_steps`
    # To the parent process, if any.
    send: Callable[[DeviceMemoryMessage], None] = lambda message: None

    own_ns: int = 0
    trouble: Exception | None = None
    _hooks: HookState = field(default_factory=lambda: HookState(AllreduceWatch()))
    _flushed_ns: int = 0
    _sampler: StackSampler = field(init=False)
    _setup: SetupWatch = field(init=False)
    _compiles: CompileWatch = field(init=False)
    _blocks: OffBlocks = field(default_factory=OffBlocks)
    _before: HostMemory = field(default_factory=host_memory)
    _pool: DevicePool | None = None
    _device_seen: str | None = None
    _window: LayerWindow | None = None
    _window_from: int | None = None
    _window_opened: int = 0
    _layers: LayerWindow | None = None  # after it was closed
    _layers_of_steps: int = 0

    def __post_init__(self) -> None:
        self._sampler = StackSampler(self._hooks, self._hooks.loader_profile.take_stack)
        self._setup = SetupWatch(self._hooks)
        self._compiles = CompileWatch(self.origin_ns)

    def start(self) -> None:
        """Open the logs and install the hooks."""
        self._writer = RowWriter(self.folder, self.origin_ns, self._hooks.allreduce.communication)
        self._hooks.at_boundary = self._between_steps
        if self.max_steps is not None:
            self._hooks.at_step_end = self._end_when_enough
        self._flushed_ns = now_ns()
        self._hooks.buffer.record(e.CLOCKS, None, other_clock_ns())
        self._patches = torch_hooks.install(self._hooks)
        self._sampler.start()

    @property
    def batch_bytes(self) -> int | None:
        """The size of the largest first batch of any iteration; None without a loader."""
        return self._hooks.batch_bytes or None

    def finish(self) -> Instrument:
        """Remove the hooks, write all rows, and return the tracing cost."""
        self._sampler.stop()
        self._close_window()
        self._setup.close()
        if self._hooks.weights is not None:
            self._hooks.weights.look(at_end=True)
        self._patches.undo()
        if self.trouble is None:
            try:
                self._writer.take(self._hooks.buffer.flush())
                self._writer.finish()
                self._look_at_device()
                self._compiles.look()
            except Exception as error:
                self.trouble = error
        return self._measure_overhead()

    def layers(self) -> list[LayerTime] | None:
        """Return the time of each layer, if all were timed. Waits for the device."""
        if self._layers is None or self._layers.failure or not self._layers_of_steps:
            return None
        return self._layers.layers(self._layers_of_steps)

    def environment(self) -> Environment:
        """Return what torch runs with, and the device once it is known."""
        found: Environment = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if self._hooks.device:
            found["device"] = self._hooks.device
        return found

    def final_message(self) -> TraceOutcome:
        """Finish, and return the outcome for the parent process or the user's program."""
        instrument, tracker = self.finish(), self._writer.detector.tracker
        outcome: TraceOutcome = {
            "instrument": instrument,
            "steps": tracker.steps,
            "layers": self.layers(),
            "environment": self.environment(),
            "script": {
                "stacks": self._sampler.times(self._writer.spans, self.origin_ns),
                "loader": self._hooks.loader_profile.figures(),
                "checkpoints": self._checkpoints(),
                "steps_inferred": self._hooks.inferred_updates > 0,
                "script_setup": self._setup.setup(tracker.rows.evaluation_with_gradients_s),
                "compilation": self._compiles.figures(),
            },
        }
        outcome["flops"], no_flops = self._setup.flops(self._writer.counted_samples)
        absent = {**self._absent(), "flops": no_flops, "compilation": self._compiles.absent}
        if known := {name: reason for name, reason in absent.items() if reason is not None}:
            outcome["absent"] = known
        if self._pool is not None:
            outcome["device_memory"] = self._pool.at_end()
        return outcome

    def _checkpoints(self) -> CheckpointFigures | None:
        """Return the calls of `torch.save` on the traced thread; None without any."""
        saves = self._hooks.saves
        if not saves:
            return None
        parts = Parts(self._writer.spans)
        inside = [
            end - begin for begin, end in saves if not parts.at(seconds(begin - self.origin_ns))
        ]
        return {
            "count": len(saves),
            "total_s": seconds(sum(end - begin for begin, end in saves)),
            "in_steps_s": seconds(sum(inside)),
        }

    def _absent(self) -> dict[str, str | None]:
        """Return the reasons for missing figures; None for those that are not missing."""
        begin = f"after step {self._window_from}" if self._window_from else "later"
        no_layers = f"the script ended too early: layers are timed {begin}"
        if self._layers is not None and self._layers.failure:
            no_layers = self._layers.failure
        hooks = self._hooks
        queue, kind = hooks.buffer.queue, (hooks.device or "cpu").partition(":")[0]
        no_timeline = why_no_timeline(kind) if queue is None else queue.trouble
        if queue is not None and queue.captured and no_timeline is None:
            no_timeline = "the steps were captured into CUDA graphs, which take no marks"
        others = sorted(hooks.devices - {hooks.device})
        unseen = hooks.unseen_replays or (queue is not None and queue.captured)
        return {
            "layers": no_layers if self.layers_steps and self.layers() is None else None,
            "device": no_timeline if hooks.device else None,
            "device_events": None if queue is None else queue.trouble,
            "loss": None if queue is None else queue.no_values,
            "other_devices": f"not timed: {', '.join(others)}. Times are those of {hooks.device}"
            if others
            else None,
            "phases": UNSEEN_REPLAYS if unseen else None,
            **hooks.failed,
            "communication": self._hooks.allreduce.reason,
            "load_cpu_s": CPU_LEFT_OUT if self._hooks.cpu_from_steps else None,
            "optimizer_s": UPDATES_NOT_TIMED if self._hooks.inferred_updates else None,
        }

    def remove_hooks(self) -> None:
        """Remove the hooks, and keep what they have recorded."""
        self._sampler.stop()
        self._setup.close()
        self._patches.undo()

    def leave_to_parent(self) -> None:
        """Remove the hooks in a forked copy. It must not destroy any object of a device."""
        keep_forever(self)
        self.remove_hooks()

    def _abandon(self, error: Exception) -> None:
        """Remove the hooks after an internal error: the script continues."""
        self.trouble = error
        self.remove_hooks()
        self._hooks.buffer.fields.clear()

    def _between_steps(self) -> None:
        try:
            self._do_what_is_due()
        except Exception as error:
            self._abandon(error)

    def _do_what_is_due(self) -> None:
        hooks, blocks = self._hooks, self._blocks
        if self._window is None and hooks.full:
            self._setup.between_steps()
        counts = self._setup.is_counting
        if self._window is None and not counts and blocks.switch(hooks.steps):
            hooks.full = not blocks.off
            hooks.buffer.record(e.DETAIL, schema.OFF if blocks.off else schema.FULL)
        if self.layers_steps and not counts:
            self._move_window()
        if now_ns() - self._flushed_ns >= FLUSH_EVERY_NS:
            self._flush()
        hooks.boundary_from_ns = self._flushed_ns + FLUSH_EVERY_NS
        due_at_steps = min(blocks.switch_at, self._setup.due_at_steps)
        hooks.boundary_from_steps = 0 if self.layers_steps else due_at_steps

    def _move_window(self) -> None:
        """Open the layer window when it is due, and close it after its steps.

        It is due in the middle of the run if its length was given, or else of the first epoch.
        """
        hooks = self._hooks
        if self._window_from is None:
            known = self.max_steps or hooks.longest
            middle = (known - self.layers_steps) // 2 if known else LAYERS_AFTER_STEPS
            self._window_from = max(1, min(middle, LAYERS_AFTER_AT_MOST))
        if self._window is None and self._layers is None and hooks.steps >= self._window_from:
            if hooks.full:
                self._window = LayerWindow(_named(hooks.roots), hooks.buffer.queue)
                self._window.open()
                self._window_opened = hooks.steps
                hooks.buffer.record(e.DETAIL, schema.LAYERS)
        elif self._window and hooks.steps >= self._window_opened + self.layers_steps:
            self._close_window()
            hooks.buffer.record(e.DETAIL, schema.FULL)

    def _close_window(self) -> None:
        if self._window is not None:
            self._window.close()
            self._layers_of_steps = self._hooks.steps - self._window_opened
            self._layers, self._window = self._window, None

    def _end_when_enough(self) -> None:
        if self.max_steps is not None and self._hooks.steps >= self.max_steps:
            self._flush()
            if self._writer.detector.steps_seen >= self.max_steps:
                self.end_script()

    def _flush(self) -> None:
        began = now_ns()
        self._hooks.buffer.record(e.OWN)
        try:
            self._writer.take(self._hooks.buffer.flush())
            self._look_at_device()
            self._compiles.look()
        except Exception as error:  # a full disk, an internal error
            self._abandon(error)
            return
        self._flushed_ns = now_ns()
        self._hooks.buffer.record(e.OWN_DONE)
        self.own_ns += self._flushed_ns - began

    def _look_at_device(self) -> None:
        """Send the memory that the script holds on its device. Never waits for it."""
        hooks = self._hooks
        if "device_peak_memory_bytes" in hooks.failed:
            return
        try:
            if self._device_seen != hooks.device and hooks.device is not None:
                self._device_seen = hooks.device
                memory = device_memory_of(torch.device(hooks.device), self._before)
                self._pool = None if memory is None else DevicePool(memory)
            if self._pool is not None:
                self.send(self._pool.now())
        except Exception as error:  # of the driver
            hooks.fail("device_peak_memory_bytes", error)
            self._pool = None

    def _measure_overhead(self) -> Instrument:
        """Return the clock's resolution and the tracing cost per step of this run.

        It includes the events (the cost of recording one is measured here) and the flushes
        (measured during the run). The comparison with steps without detail is made from the
        records.
        """
        scratch = HookState(
            AllreduceWatch(),
            EventBuffer(self._hooks.buffer.queue),
            device=self._hooks.device or "cpu",
        )
        call = torch_hooks._call(scratch, lambda module: None)
        idle = nn.PReLU()  # it has a weight, so every call is recorded, and no random one

        def record_a_call() -> None:
            scratch.counted = bool(self._hooks.loaders)  # samples are known from the batches
            call(idle)

        event_s = seconds(1) * cost_amid_work_ns(record_a_call) / 2
        hooks_ns = self._hooks.allreduce.own_ns + self._hooks.inferring_ns
        own_s = seconds(self.own_ns + self._setup.own_ns + hooks_ns)
        tracker = self._writer.detector.tracker
        events, steps, steps_s = self._writer.events, tracker.steps, seconds(tracker.rows.steps_ns)
        overhead_s = None
        if steps and steps_s:  # none are written if a flush failed
            overhead_s = (events * event_s + own_s) / steps
        return {
            "clock": "perf_counter (monotonic)",
            "clock_resolution_s": resolution_s(),
            "event_cost_s": event_s,
            "events_per_step": events / steps if steps else None,
            "overhead_per_step_s": overhead_s,
            "overhead_share": None if overhead_s is None else overhead_s / (steps_s / steps),
        }


def _named(roots: dict[int, Any]) -> list[tuple[str, nn.Module]]:
    """Name the outermost modules that are still alive: by class, if there are several."""
    alive = [module for reference in list(roots.values()) if (module := reference()) is not None]
    if len(alive) == 1:
        return [("", alive[0])]
    named: list[tuple[str, nn.Module]] = []
    for module in alive:
        kind = type(module).__name__
        taken = sum(name.partition("#")[0] == kind for name, _ in named)
        named.append((f"{kind}#{taken + 1}" if taken else kind, module))
    return named

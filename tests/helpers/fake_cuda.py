"""A `torch.cuda` without a GPU, as strict as torch's: streams, events, pinned memory, graphs.

Tensors stay on the CPU and say that they are on `cuda:0` or `cuda:1`. Their operations take no time
on the device; `launch` puts work of a given length into the current stream. Each device is an
in-order queue per stream, in real time and on a clock of its own; a host that is `DEPTH` launches
ahead waits. What raises on a GPU raises here. A CUDA object that is used or destroyed in another
process than its maker's ends that process with SIGABRT, as `~CUDAEvent` does.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from stepscope.meter import device_timeline
from stepscope.trace.patches import Patches

DEPTH = 1024
OFFSET_MS, DRIFT = 86_400_000.0, 2e-5  # the device's clock against the host's
_MIB = 2**20


def host_ms() -> float:
    return time.perf_counter_ns() * 1e-6


def _wait_until(at_ms: float) -> None:
    while (left_ms := at_ms - host_ms()) > 0:
        time.sleep(left_ms * 1e-3)


@dataclass
class Counts:
    """What was done to the devices. `contexts` are the devices that have one."""

    contexts: set[int] = field(default_factory=set)
    synchronizations: int = 0
    events: int = 0
    pinned: int = 0
    while_capturing: int = 0


class _OfOneProcess:
    """An object of the driver: only its maker's process may touch or destroy it."""

    _process: int | None = None

    def _touch(self) -> None:
        if self._process is None:
            self._process = os.getpid()
        elif self._process != os.getpid():
            os.abort()

    def __del__(self) -> None:
        if self._process not in (None, os.getpid()):
            os.abort()


class Stream(_OfOneProcess):
    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.index = _index(device)
        self.device = torch.device("cuda", self.index)
        self.ends_ms = 0.0  # when everything in it is done
        self.capturing: CUDAGraph | None = None

    def issue(self, work_ms: float) -> float:
        """Put work into the stream and return when it will be done."""
        self._touch()
        if self.capturing is not None:
            self.capturing.work_ms += work_ms
            return self.ends_ms
        gpu.contexts.add(self.index)
        queue = gpu.queues[self.index]
        while queue and queue[0] <= host_ms():
            queue.popleft()
        if len(queue) >= DEPTH:  # the host is too far ahead
            _wait_until(queue.popleft())
        self.ends_ms = max(self.ends_ms, host_ms()) + work_ms
        queue.append(self.ends_ms)
        return self.ends_ms

    def is_capturing(self) -> bool:
        return self.capturing is not None

    def wait_stream(self, other: Stream) -> None:
        self.ends_ms = max(self.ends_ms, other.ends_ms)

    def wait_event(self, event: Event) -> None:
        assert event.at_ms is not None
        self.ends_ms = max(self.ends_ms, event.at_ms)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._touch()
        _refuse_while_capturing("a synchronisation")
        gpu.synchronizations += 1
        _wait_until(self.ends_ms)
        _land_copies()


class Event(_OfOneProcess):
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing = enable_timing
        self.stream: Stream | None = None
        self.at_ms: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        self._touch()
        if stream.capturing is not None:
            gpu.while_capturing += 1
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if self.stream is not None and self.stream.index != stream.index:
            raise RuntimeError(
                f"Event device {self.stream.index} does not match recording stream's "
                f"device {stream.index}."
            )
        if self.stream is None:
            gpu.events += 1
        self.stream, self.at_ms = stream, stream.issue(0)

    def query(self) -> bool:
        self._touch()
        _refuse_while_capturing("a query")
        _land_copies()
        return self.at_ms is None or host_ms() >= self.at_ms

    def synchronize(self) -> None:
        self._touch()
        _refuse_while_capturing("a synchronisation")
        gpu.synchronizations += 1
        if self.at_ms is not None:
            _wait_until(self.at_ms)
        _land_copies()

    def elapsed_time(self, end: Event) -> float:
        self._touch()
        end._touch()
        if not self.enable_timing or not end.enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at_ms is None or end.at_ms is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        assert self.stream is not None
        assert end.stream is not None
        if self.stream.index != end.stream.index:
            raise RuntimeError("CUDA error: invalid resource handle")
        if max(self.at_ms, end.at_ms) > host_ms():
            raise RuntimeError("CUDA error: device not ready")
        ticks = (at_ms * (1 + DRIFT) + OFFSET_MS for at_ms in (end.at_ms, self.at_ms))
        return ctypes.c_float(next(ticks) - next(ticks)).value


class CUDAGraph(_OfOneProcess):
    def __init__(self) -> None:
        self.work_ms = 0.0

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        self._touch()
        current_stream().capturing = gpu.capture = self

    def capture_end(self) -> None:
        current_stream().capturing = gpu.capture = None

    def replay(self) -> None:
        self._touch()
        current_stream().issue(self.work_ms)


class graph:  # noqa: N801
    """`torch.cuda.graph`: captures on a stream of its own."""

    def __init__(self, cuda_graph: CUDAGraph) -> None:
        self.cuda_graph, self.stream = cuda_graph, stream(Stream())

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        self.stream.__enter__()
        self.cuda_graph.capture_begin()

    def __exit__(self, *args: object) -> None:
        self.cuda_graph.capture_end()
        self.stream.__exit__(*args)


class _Gpu(Counts):
    """The state of the driver in this process."""

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]
        self.queues: list[deque[float]] = [deque(), deque()]
        self.current = 0
        self.defaults = [Stream(0), Stream(1)]
        self.streams = list(self.defaults)
        self.capture: CUDAGraph | None = None
        self.pages: dict[int, _Pages] = {}
        self.copies: list[tuple[float, torch.Tensor, torch.Tensor]] = []


class _Pages(_OfOneProcess):
    """Pinned pages behind a tensor."""


gpu = _Gpu()


def _index(device: Any) -> int:
    if device is None:
        return gpu.current
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return gpu.current if index is None else index


def _refuse_while_capturing(what: str) -> None:
    if gpu.capture is not None:
        gpu.while_capturing += 1
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what}")


def _land_copies() -> None:
    """Let the copies arrive that are over by now; a host that reads earlier finds NaN."""
    now_ms, waiting = host_ms(), []
    for at_ms, target, source in gpu.copies:
        if at_ms <= now_ms:
            torch.Tensor.copy_(target, source)
        else:
            waiting.append((at_ms, target, source))
    gpu.copies = waiting


def current_stream(device: Any = None) -> Stream:
    return gpu.streams[_index(device)]


@contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    device, before = gpu.current, gpu.streams[chosen.index]
    gpu.current, gpu.streams[chosen.index] = chosen.index, chosen
    try:
        yield
    finally:
        gpu.current, gpu.streams[chosen.index] = device, before


@contextmanager
def device(chosen: Any) -> Iterator[None]:
    before, gpu.current = gpu.current, _index(chosen)
    try:
        yield
    finally:
        gpu.current = before


def launch(work_ms: float, on: Any = None) -> None:
    """Put work into the current stream of a device."""
    current_stream(on).issue(work_ms)


def _synchronize(on: Any = None) -> None:
    _refuse_while_capturing("a synchronisation")
    gpu.synchronizations += 1
    _wait_until(max(queue[-1] for queue in (*gpu.queues, [0.0]) if queue))
    _land_copies()


# tensors


class CudaTensor(torch.Tensor):
    """A tensor that says it is on a GPU. Results of operations with one are on it, too."""

    index = 0
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: torch.device("cuda", self.index))

    def get_device(self) -> int:
        return self.index

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS:
            current_stream(cls.index).synchronize()
            return func(_on_host(args[0]), *args[1:], **kwargs)
        if func is torch.Tensor.copy_ and not isinstance(args[0], CudaTensor):
            return _copy_to_host(cls, args[0], args[1], *args[2:], **kwargs)
        if func is torch.Tensor.to and "cpu" in map(str, (*args[1:], *kwargs.values())):
            current_stream(cls.index).synchronize()
            return _on_host(args[0])
        return super().__torch_function__(func, types, args, kwargs)


class OtherCudaTensor(CudaTensor):
    """A tensor on the second GPU."""

    index = 1


_READS = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.cpu,
    torch.Tensor.numpy,
    torch.Tensor.__bool__,
    torch.Tensor.__float__,
}


def _on_host(tensor: Any) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


def _copy_to_host(
    cls: type[CudaTensor], target: torch.Tensor, source: Any, non_blocking: bool = False
) -> torch.Tensor:
    value, at = _on_host(source).clone(), current_stream(cls.index)
    if not non_blocking or target.untyped_storage().data_ptr() not in gpu.pages:
        at.synchronize()
        return target.copy_(value)
    if target.is_floating_point():
        target.fill_(float("nan"))
    gpu.copies.append((at.issue(0.001), target, value))
    return target


def _is_cuda(args: Any, kwargs: Any) -> bool:
    wanted = args[0] if args else kwargs.get("device")
    return isinstance(wanted, str | torch.device) and torch.device(wanted).type == "cuda"


def to_gpu(tensor: torch.Tensor, device: Any = None, *, non_blocking: bool = False) -> CudaTensor:
    """Move a tensor of the host, or of the other device."""
    index = _index(device)
    at = current_stream(index)
    at.issue(0.01)
    is_pinned = tensor.untyped_storage().data_ptr() in gpu.pages
    if not (non_blocking and is_pinned):
        _wait_until(at.ends_ms)  # from pageable memory: the host waits for what comes before
    kind = OtherCudaTensor if index else CudaTensor
    return tensor.as_subclass(kind) if tensor.requires_grad else tensor.detach().as_subclass(kind)


def _to(original: Any) -> Callable[..., Any]:
    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = args[0] if args else kwargs.get("device")
        if _is_cuda(args, kwargs) and getattr(tensor, "index", None) != _index(wanted):
            return to_gpu(tensor, wanted, non_blocking=bool(kwargs.get("non_blocking")))
        if _is_cuda(args, kwargs):
            return tensor
        return original(tensor, *args, **kwargs)

    return to


def _pinned(original: Any) -> Callable[..., Any]:
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if pin_memory:
            _refuse_while_capturing("an allocation of pinned memory")
            if not gpu.contexts:
                gpu.contexts.add(gpu.current)  # cudaHostAlloc needs one
            gpu.pinned += 1
            pages = gpu.pages[made.untyped_storage().data_ptr()] = _Pages()
            pages._touch()
        return made

    return make


class Work(torch.autograd.Function):
    """Device work in the forward pass and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Any, forward_ms: float, backward_ms: float) -> Any:
        ctx.backward_ms = backward_ms
        ctx.stream = current_stream(values.device) if values.is_cuda else None
        if ctx.stream is not None:
            ctx.stream.issue(forward_ms)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if ctx.stream is not None:
            ctx.stream.issue(ctx.backward_ms)
        return gradient, None, None


class Busy(nn.Module):
    """A model whose passes take so many ms on the device, and nearly nothing on the host."""

    def __init__(self, forward_ms: float = 0.0, backward_ms: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.work_ms = forward_ms, backward_ms

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Work.apply(self.linear(values), *self.work_ms)  # type: ignore[no-untyped-call]
        return made


@contextmanager
def installed() -> Iterator[Counts]:
    """Replace `torch.cuda`, and let tensors move there. Install it before any hook."""
    gpu.reset()
    device_timeline._QUEUES.clear()  # of an earlier test
    patches = Patches()
    properties = SimpleNamespace(is_integrated=0, total_memory=8192 * _MIB, uuid="0")

    def touching(answer: Any) -> Callable[..., Any]:
        def ask(on: Any = None) -> Any:
            gpu.contexts.add(_index(on))
            return answer

        return ask

    replaced: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: bool(gpu.contexts),
        "device_count": lambda: 2,
        "current_device": lambda: gpu.current,
        "set_device": lambda on: setattr(gpu, "current", _index(on)),
        "current_stream": current_stream,
        "default_stream": lambda on=None: gpu.defaults[_index(on)],
        "synchronize": _synchronize,
        "is_current_stream_capturing": lambda: current_stream().capturing is not None,
        "get_device_properties": lambda on=None: properties,
        "mem_get_info": touching((7192 * _MIB, 8192 * _MIB)),
        "memory_reserved": lambda on=None: 600 * _MIB,
        "max_memory_reserved": lambda on=None: 700 * _MIB,
        **{kind.__name__: kind for kind in (Stream, Event, CUDAGraph, graph)},
        "stream": stream,
        "device": device,
    }
    for name, ours in replaced.items():
        patches.replace(torch.cuda, name, lambda original, ours=ours: ours)
    patches.replace(torch.Tensor, "to", _to)
    to = torch.Tensor.to
    patches.replace(
        torch.Tensor,
        "cuda",
        lambda original: lambda tensor, on=None: to(tensor, f"cuda:{_index(on)}"),
    )
    patches.replace(torch, "empty", _pinned)
    patches.replace(torch, "zeros", _pinned)
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        yield gpu
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
        patches.undo()

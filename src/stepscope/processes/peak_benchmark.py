"""Measure the peak compute and memory rates of this machine.

Started with `python -m stepscope.processes.peak_benchmark`.

A product of two square matrices gives the compute rate, a sum of two long arrays the memory rate.
The fastest of many short blocks is the peak: interference only ever slows a machine down, and a
short block is more likely to be undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from stepscope.meter.clock import now_ns, seconds
from stepscope.processes.answer import answer_once, needing_torch
from stepscope.records.types import BenchmarkedPeak, PeakAnswer, PeakRequest
from stepscope.settings.load_settings import validate
from stepscope.units import format_count

if TYPE_CHECKING:
    import torch

LEAST_BLOCKS = 5
BLOCK_S = 0.004  # about as long as a scheduler leaves a task alone
TRIED_S = 0.25  # at least, for each size
LONGEST_S = 0.1  # for one product; a longer one ends the search

_VALUE_BYTES = 4


def measure(request: PeakRequest) -> PeakAnswer:
    """Return the peaks for each precision and number of threads; failures are in `left_out`."""
    with needing_torch("measuring peaks"):
        import torch

        from stepscope.train.device import describe_torch, resolve
    device = torch.device(resolve(validate({})).device)
    all_threads = torch.get_num_threads()
    numbers_of_threads = {all_threads, 1} if device.type == "cpu" else {all_threads}
    # Convolutions may use TF32 while products do not: the peak must not be below a convolution.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    peaks: list[BenchmarkedPeak] = []
    left_out: dict[str, str] = {}
    for threads in sorted(numbers_of_threads, reverse=True):
        torch.set_num_threads(threads)
        bytes_per_s = _bytes_per_s(device, request["array_bytes"])
        for precision in _MADE_FOR[device.type]:
            try:
                flop_per_s, size = _flop_per_s(device, _TYPES[precision], request["matrix_sizes"])
            except RuntimeError as error:
                what = f"{precision} with {format_count(threads, 'thread')}"
                left_out[what] = str(error).strip().partition("\n")[0]
                continue
            peaks.append(
                {
                    "environment": describe_torch(device),
                    "precision": precision,
                    "flop_per_s": flop_per_s,
                    "matrix_size": size,
                    "bytes_per_s": bytes_per_s,
                }
            )
    return {"peaks": peaks, "left_out": left_out}


# A CPU converts fp16 to fp32.
_MADE_FOR = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "bf16", "fp16"), "mps": ("fp32", "fp16")}
_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _flop_per_s(device: torch.device, dtype: str, sizes: list[int]) -> tuple[float, int]:
    """Return the peak operations per second, and the matrix size that reached it."""
    import torch

    best, best_size = 0.0, 0
    for size in sizes:
        try:
            left, right = (
                torch.rand(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2)
            )
            took_s = _best_s(partial(torch.mm, left, right, out=torch.empty_like(left)), device)
        except RuntimeError:
            if not best_size:
                raise
            break  # out of memory: keep the result of smaller sizes
        best, best_size = max((best, best_size), (2 * size**3 / took_s, size))
        if took_s > LONGEST_S:
            break
    return best, best_size


def _bytes_per_s(device: torch.device, array_bytes: int) -> float:
    """Return the peak bytes per second: two arrays are read, one is written."""
    import torch

    one, other, total = (torch.ones(array_bytes // _VALUE_BYTES, device=device) for _ in range(3))
    return 3 * array_bytes / _best_s(partial(torch.add, one, other, out=total), device)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """Return the time of one call in the fastest block. Waits for the device."""
    import torch

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()

    def block_s(times: int) -> float:
        synchronize()
        began = now_ns()
        for _ in range(times):
            work()
        synchronize()
        return seconds(now_ns() - began)

    times = 1
    while (took_s := block_s(times)) < BLOCK_S:
        times *= 2
    blocks_s = [took_s]
    while len(blocks_s) < LEAST_BLOCKS or sum(blocks_s) < TRIED_S:
        blocks_s.append(block_s(times))
    return min(blocks_s) / times


if __name__ == "__main__":
    answer_once(measure)

"""Describe torch's build and devices: `python -m stepscope.processes.torch_info`.

A separate process, so that the caller need not import torch.
"""

from __future__ import annotations

import re

from stepscope.processes.answer import FAILURES, answer_once, cannot_load
from stepscope.records.types import TorchBuild, TorchDevice


def describe_build(_: object) -> TorchBuild:
    """Return version, threads, math library and accelerators of the installed torch."""
    try:
        import torch
    except FAILURES as error:
        raise cannot_load("training", error) from error
    built = torch.__config__.show()
    library = re.search(r"BLAS_INFO=(\w+)", built)
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "math_library": library[1] if library else None,
        "mkldnn": torch.backends.mkldnn.is_available(),
        "openmp": torch.backends.openmp.is_available(),
        "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "accelerators": [*_cuda_devices(), *_metal_devices()],
    }


def _cuda_devices() -> list[TorchDevice]:
    import torch

    if not torch.cuda.is_available():
        return []
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [
        {"name": each.name, "memory_bytes": each.total_memory, "shared": bool(each.is_integrated)}
        for each in found
    ]


def _metal_devices() -> list[TorchDevice]:
    import torch

    if not torch.backends.mps.is_available():
        return []
    memory_bytes = torch.mps.recommended_max_memory()
    return [{"name": "Apple GPU (Metal)", "memory_bytes": memory_bytes, "shared": True}]


if __name__ == "__main__":
    answer_once(describe_build)

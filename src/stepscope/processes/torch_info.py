"""Describe torch's build and devices: `python -m stepscope.processes.torch_info`."""

from __future__ import annotations

import re

from stepscope.processes.answer import answer_once, needing_torch
from stepscope.records.types import TorchBuild, TorchDevice


def describe_build(_: object) -> TorchBuild:
    """Return version, threads, math library and accelerators of the installed torch."""
    with needing_torch("training"):
        import torch
    library = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    devices: list[TorchDevice] = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            shared = bool(found.is_integrated)
            devices.append(
                {"name": found.name, "memory_bytes": found.total_memory, "shared": shared}
            )
    if torch.backends.mps.is_available():
        memory_bytes = torch.mps.recommended_max_memory()
        devices.append({"name": "Apple GPU (Metal)", "memory_bytes": memory_bytes, "shared": True})
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "math_library": library[1] if library else None,
        "mkldnn": torch.backends.mkldnn.is_available(),
        "openmp": torch.backends.openmp.is_available(),
        "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "accelerators": devices,
    }


if __name__ == "__main__":
    answer_once(describe_build)

"""What a process holds on an NVIDIA GPU, as its driver accounts for it."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.hardware.nvml import Gpu, NvmlError, find_gpus
from stepscope.hardware.system_root import system_root


def used_bytes(device_uuid: str, process_id: int, gpus: Sequence[Gpu] | None = None) -> int | None:
    """Return what a process holds on a device.

    None where the driver does not tell: it cannot be asked, keeps no such account, or knows the
    process by another number, as it does from inside some containers.
    """
    try:
        for gpu in find_gpus(system_root()) if gpus is None else gpus:
            if _same(gpu.ask("nvmlDeviceGetUUID"), device_uuid):
                for each in gpu.ask("nvmlDeviceGetComputeRunningProcesses"):
                    if each.pid == process_id and each.usedGpuMemory is not None:
                        return int(each.usedGpuMemory)
    except NvmlError:
        return None
    return None


def _same(of_driver: str, of_torch: str) -> bool:
    """Compare two names of a device: the driver puts `GPU-` before the number, torch does not."""
    return of_driver.removeprefix("GPU-") == of_torch.removeprefix("GPU-")

"""Device, precision and memory format of a training.

The device decides `--memory-format auto`; the choice was benchmarked (docs/decisions.md):
channels_last on a CPU and on CUDA, contiguous on MPS.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from stepscope.errors import MachineError
from stepscope.records.types import Environment
from stepscope.settings import RunSpec

_FORMAT_BY_DEVICE = {"cpu": "channels_last", "cuda": "channels_last", "mps": "contiguous"}


def resolve(spec: RunSpec) -> RunSpec:
    """Replace every `auto` by a value for this machine; raise if the device is missing."""
    device = _resolve_device(spec.device)
    kind = torch.device(device).type
    memory_format = _FORMAT_BY_DEVICE[kind] if spec.memory_format == "auto" else spec.memory_format
    threads = spec.threads or torch.get_num_threads()
    return spec.model_copy(
        update={"device": device, "memory_format": memory_format, "threads": threads}
    )


def _resolve_device(device: str) -> str:
    kind, _, index = device.partition(":")
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if kind == "auto":
        return "cuda" if has_cuda else "mps" if has_mps else "cpu"
    if kind == "cuda" and not has_cuda:
        found = "no CUDA device" if torch.version.cuda else "a torch built without CUDA"
        raise MachineError(f"device: wanted {device}, found {found}. Use --device cpu.")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise MachineError(
            f"device: wanted {device}, found cuda:0 to cuda:{last}. Use one of them."
        )
    if kind == "mps" and not has_mps:
        raise MachineError("device: wanted mps, found no Metal device. Use --device cpu.")
    return device


def memory_format_of(spec: RunSpec) -> torch.memory_format:
    """Return the resolved memory format as torch's constant."""
    channels_last = spec.memory_format == "channels_last"
    return torch.channels_last if channels_last else torch.contiguous_format


def autocast_of(spec: RunSpec, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the autocast context for the precision of the spec."""
    if spec.precision == "fp32":
        return contextlib.nullcontext()
    dtype = torch.bfloat16 if spec.precision == "bf16" else torch.float16
    return torch.autocast(device.type, dtype=dtype)


def describe_torch(device: torch.device) -> Environment:
    """Return the properties of torch and the device that comparable runs share."""
    described: Environment = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": None,
        "cuda": torch.version.cuda,
        "mkldnn": torch.backends.mkldnn.is_available(),
    }
    if device.type == "cuda":
        described["device_name"] = torch.cuda.get_device_name(device)
    return described

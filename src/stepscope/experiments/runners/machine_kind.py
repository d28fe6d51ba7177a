"""What kind of machine is this? Only trials of like machines are compared."""

from __future__ import annotations

from stepscope.hardware.host import describe_host
from stepscope.hardware.nvml import find_gpus
from stepscope.hardware.system_root import system_root

_GIB = 2**30


def kind_of_machine() -> str:
    """Say what two machines must share for their trials to be compared."""
    host = describe_host()
    gpus = [gpu.ask("nvmlDeviceGetName") for gpu in find_gpus(system_root())]
    devices = ", ".join(f"{gpus.count(name)} {name}" for name in dict.fromkeys(gpus))
    memory = memory_kind(host["memory_bytes"])
    return f"{host['cpu']}, {host['cpus_usable']} CPUs, {memory}, {devices or 'no GPU'}"


def memory_kind(memory_bytes: int) -> str:
    """Say how much memory a machine was built with, in whole GiB.

    Its firmware keeps a part to itself, and twins with another version of it differ in that.
    """
    return f"{-(-memory_bytes // _GIB)} GiB"

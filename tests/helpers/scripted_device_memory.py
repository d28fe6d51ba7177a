"""A device with scripted memory; the tensors stay on the CPU.

`python -m scripted_device_memory` is the training process on such a device, which the variable
SCRIPTED_DEVICE describes.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Literal

from stepscope.meter.device_memory import Context

MIB = 2**20


@dataclass
class ScriptedMemory:
    """Holds so much from the start, and tells in `asked` what it was asked."""

    unified: bool = False
    context_bytes: int = 300 * MIB
    held_bytes: int = 64 * MIB
    room_bytes: int = 8192 * MIB
    failed: bool = False
    how: Literal["counted", "measured", "calibrated"] = "measured"
    asked: list[str] = field(default_factory=list)

    def context(self) -> Context:
        self.asked.append("context")
        if self.failed:
            raise RuntimeError("the device has failed")
        return Context(self.context_bytes, self.how, "by the script")

    def reset(self) -> None:
        self.asked.append("begin anew")

    def reserved_bytes(self) -> int:
        self.asked.append("reserved")
        return self.held_bytes

    def peak_reserved_bytes(self) -> int:
        self.asked.append("peak")
        return self.held_bytes + MIB

    def limit_bytes(self) -> int:
        return self.room_bytes


if __name__ == "__main__":
    from stepscope.processes import training_process, training_session

    scripted = ScriptedMemory(**json.loads(os.environ["SCRIPTED_DEVICE"]))
    training_session.device_memory_of = lambda device, before: scripted
    sys.exit(training_process.main(sys.argv[1:]))

"""The training process, but for its device's memory, which is scripted by the environment."""

from __future__ import annotations

import json
import os
import sys

from scripted_device_memory import ScriptedMemory

from stepscope.processes import training_process, training_session

scripted = ScriptedMemory(**json.loads(os.environ["SCRIPTED_DEVICE"]))
training_session.device_memory_of = lambda device, before: scripted  # type: ignore[assignment]
sys.exit(training_process.main(sys.argv[1:]))

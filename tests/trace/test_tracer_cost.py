"""What a tracer says of its own cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed_hooks import events_of

from stepscope.meter.clock import now_ns
from stepscope.records import run_folder
from stepscope.trace import tracer as tracers
from stepscope.trace.event_buffer import HookState
from stepscope.trace.tracer import Tracer


def test_what_an_event_costs_is_measured_on_calls_that_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[HookState] = []

    def make_state(*args: Any, **fields: Any) -> HookState:
        made.append(HookState(*args, **fields))
        return made[-1]

    def cost_of(call: Callable[[], None]) -> float:
        for _ in range(5):
            call()
        return 1.0

    tracer = Tracer(run_folder.create(tmp_path, "own cost", "trace", {}).path, now_ns())
    tracer.start()
    monkeypatch.setattr(tracers, "HookState", make_state)
    monkeypatch.setattr(tracers, "cost_amid_work_ns", cost_of)
    tracer.finish()
    [scratch] = made
    assert len(events_of(scratch)) == 2 * 5, "each call begins and ends"

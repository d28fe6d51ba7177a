"""What a tracer says of its own cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.measure import tracer as tracers
from stepscope.measure.clock import now_ns
from stepscope.measure.notebook import Notebook
from stepscope.measure.tracer import Tracer
from stepscope.records import folder


def test_what_an_event_costs_is_measured_on_calls_that_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books: list[Notebook] = []

    def notebook(**fields: Any) -> Notebook:
        books.append(Notebook(**fields))
        return books[-1]

    def cost_of(call: Callable[[], None]) -> float:
        for _ in range(5):
            call()
        return 1.0

    tracer = Tracer(folder.create(tmp_path, "own cost", "trace", {}).path, now_ns())
    tracer.start()
    monkeypatch.setattr(tracers, "Notebook", notebook)
    monkeypatch.setattr(tracers, "cost_amid_work_ns", cost_of)
    tracer.finish()
    [scratch] = books
    assert len(scratch.events) == 2 * 5, "each call begins and ends"

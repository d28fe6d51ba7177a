"""From an empty folder to a closed one: supervise what runs in it, and write its last words."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stepscope.experiments.supervise import Charge, Onlooker, Outcome, listening, supervise
from stepscope.hardware.host import describe_host
from stepscope.records import folder, reader, schema

# What the numbers mean is another room's business; whoever calls brings it along.
Summarize = Callable[[reader.Run, dict[str, Any]], dict[str, Any]]


def carry_out(
    made: folder.RunFolder,
    charge: Charge,
    onlooker: Onlooker,
    summarize: Summarize,
    *,
    elapsed_s: float = 0.0,
    resumed: str | None = None,
) -> Outcome:
    """Run a charge in a folder and close it, whatever happens."""
    with made.held(), listening(pausing=charge.own_session) as signals:  # until it is closed
        if resumed:
            made.restore_missing_files()
            made.add_event("resume", elapsed_s, after=resumed)
        before = made.update_info(
            status=schema.RUNNING, reason=None, process=os.getpid(), environment=describe_host()
        )
        try:
            outcome = supervise(made, charge, onlooker, signals, elapsed_s=elapsed_s)
            if outcome.traceback is not None:
                made.add_event("fault", outcome.wall_s, traceback=outcome.traceback)
            summary = summarize(reader.load_run(made.path), _measured(outcome, before["summary"]))
        except BaseException as error:
            made.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
            raise
        made.close(
            status=outcome.status,
            reason=outcome.reason,
            process=None,
            instrument={**outcome.instrument, "off_blocks": summary["off_blocks"]},
            summary=summary,
        )
    return outcome


def _measured(outcome: Outcome, earlier: dict[str, Any] | None) -> dict[str, Any]:
    """Return the figures that are in no table, those from before a resume included."""
    earlier = earlier or {}
    return {
        "wall_s": outcome.wall_s,
        "preparation_s": outcome.preparation_s,
        "peak_memory_bytes": _larger(outcome.peak_memory_bytes, earlier.get("peak_memory_bytes")),
        "layers": outcome.layers or earlier.get("layers"),
        "memory_bill": {"forecast": outcome.forecast, "measured_bytes": outcome.measured_bytes},
        "requests": outcome.requests or earlier.get("requests"),
        "absent": outcome.absent,
    }


def _larger(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None

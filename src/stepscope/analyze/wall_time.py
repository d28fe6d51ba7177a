"""Where does the time of the whole run go: imports, preparation, epochs, evaluations, gaps?

The parts partition the wall-clock time of a run. Later parts never overlap earlier ones: a clock
that disagrees by a little moves a boundary and loses no time.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

from stepscope.records.run_reader import Run
from stepscope.records.types import EpochRow, WallSpan

TORCH_READY = "torch_ready"
IMPORTS, PREPARATION, FIRST_BATCH, TRAINING = "imports", "preparation", "first batch", "training"
EVALUATION, CHECKPOINTS, GAPS, SHUTDOWN = "evaluation", "checkpoints", "gaps", "shutdown"
# In the order of a run.
PARTS = (IMPORTS, PREPARATION, FIRST_BATCH, TRAINING, EVALUATION, CHECKPOINTS, GAPS, SHUTDOWN)


class _Known(NamedTuple):
    """A part whose begin and end were recorded."""

    part: str
    start_s: float
    end_s: float


def wall_spans(run: Run, wall_s: float | None) -> list[WallSpan]:
    """Return the parts of the run's wall-clock time in their order; [] if nothing was trained.

    A training that was killed in its first epoch has steps and no row for the epoch.
    """
    epochs = [row for row in run.epoch_rows("train") if row["total_s"] is not None]
    if not epochs or wall_s is None:
        return []
    evaluations = [row for row in run.epoch_rows() if row["split"] != "train" and row["total_s"]]
    inner = [
        *(_Known(EVALUATION, row["start_s"], _end_s(row)) for row in evaluations),
        *(
            _Known(CHECKPOINTS, event["time_s"] - event["took_s"], event["time_s"])
            for event in run.events
            if event["event"] == "checkpoint"
        ),
    ]
    outer = [_of_epoch(row, evaluations) for row in epochs]
    outer.sort(key=lambda each: each.start_s)
    first_s = _first_batch_s(run, min(epochs, key=lambda row: row["start_s"]))
    begin_s = min(each.start_s for each in chain(outer, inner))
    ready_s = next((event["time_s"] for event in run.events if event["event"] == TORCH_READY), 0.0)
    known = [
        _Known(IMPORTS, 0.0, min(ready_s, begin_s)),
        _Known(PREPARATION, ready_s, begin_s),
        *inner,
        _Known(FIRST_BATCH, outer[0].start_s, outer[0].start_s + first_s),
        *outer,
    ]
    return _partition(known, wall_s)


def _of_epoch(row: EpochRow, evaluations: list[EpochRow]) -> _Known:
    """Return an epoch from its begin to its end; its own time leaves out evaluations in it."""
    end_s = _end_s(row)
    for each in evaluations:
        if row["start_s"] <= each["start_s"] < end_s:
            end_s += each["total_s"]
    return _Known(TRAINING, row["start_s"], end_s)


def _end_s(row: EpochRow) -> float:
    return row["start_s"] + row["total_s"]


def _first_batch_s(run: Run, first: EpochRow) -> float:
    """Return the time until the first epoch has its first batch, the start of workers included."""
    steps = run.steps
    for epoch, step, data_s in zip(steps["epoch"], steps["step"], steps["data_s"], strict=True):
        if (epoch, step) == (first["epoch"], 1):
            return float(first["loader_start_s"] or 0.0) + float(data_s or 0.0)
    return 0.0


def _partition(known: list[_Known], wall_s: float) -> list[WallSpan]:
    """Return what each moment belongs to: the first of the parts that contain it, or a gap."""
    edges = sorted(
        {min(max(edge, 0.0), wall_s) for each in known for edge in (each.start_s, each.end_s)}
        | {0.0, wall_s}
    )
    last_s = min(max(each.end_s for each in known), wall_s)
    opening = sorted(range(len(known)), key=lambda at: known[at].start_s)
    open_at: list[int] = []
    spans: list[WallSpan] = []
    following = 0
    for start_s, end_s in pairwise(edges):
        while following < len(opening) and known[opening[following]].start_s <= start_s:
            open_at.append(opening[following])
            following += 1
        open_at = [at for at in open_at if known[at].end_s > start_s]
        part = known[min(open_at)].part if open_at else SHUTDOWN if start_s >= last_s else GAPS
        if spans and spans[-1]["part"] == part and part not in (TRAINING, EVALUATION):
            spans[-1]["total_s"] = end_s - spans[-1]["start_s"]
        else:
            spans.append({"part": part, "start_s": start_s, "total_s": end_s - start_s})
    return spans


def time_by_part(spans: list[WallSpan], checkpoints_s: float = 0.0) -> dict[str, float]:
    """Return the total of each part.

    `checkpoints_s` is the time of checkpoints without a span of their own. It is taken out of the
    gaps between epochs, and what does not fit there out of the training.
    """
    totals = dict.fromkeys(PARTS, 0.0)
    for span in spans:
        totals[span["part"]] += span["total_s"]
    for part in (GAPS, TRAINING):
        moved_s = min(checkpoints_s, totals[part])
        totals[part] -= moved_s
        totals[CHECKPOINTS] += moved_s
        checkpoints_s -= moved_s
    return {part: total_s for part, total_s in totals.items() if total_s > 0}

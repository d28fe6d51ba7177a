"""Where does the time of the whole run go: imports, preparation, epochs, evaluations, gaps?"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.records.run_reader import Run
from stepscope.records.types import EpochRow, WallSpan

# In the order of a run.
TORCH_READY = "torch_ready"
PARTS = ("imports", "preparation", "training", "evaluation", "checkpoints", "gaps", "shutdown")


def wall_spans(run: Run, wall_s: float | None) -> list[WallSpan]:
    """Return the parts of the run's wall-clock time in their order; [] if nothing was trained."""
    epochs = sorted(
        (row for row in run.epoch_rows("train") if row["total_s"] is not None),
        key=lambda row: row["start_s"],
    )
    if not epochs or wall_s is None:
        return []
    return [span for span in _spans(run, epochs, wall_s) if span["total_s"] > 0]


def _spans(run: Run, epochs: list[EpochRow], wall_s: float) -> Iterator[WallSpan]:
    evaluations = [row for row in run.epoch_rows() if row["split"] != "train" and row["total_s"]]
    rows = sorted([*epochs, *evaluations], key=lambda row: row["start_s"])
    begin_s = rows[0]["start_s"]
    ready_s = next((event["time_s"] for event in run.events if event["event"] == TORCH_READY), 0.0)
    yield {"part": "imports", "start_s": 0.0, "total_s": ready_s}
    yield {"part": "preparation", "start_s": ready_s, "total_s": begin_s - ready_s}
    end_s = begin_s
    for row in rows:
        yield {"part": "gaps", "start_s": end_s, "total_s": row["start_s"] - end_s}
        part = "training" if row["split"] == "train" else "evaluation"
        yield {"part": part, "start_s": row["start_s"], "total_s": row["total_s"]}
        until_s = row["start_s"] + row["total_s"]
        if row["split"] == "train":  # its own time leaves out the evaluations inside it
            for each in evaluations:
                if row["start_s"] <= each["start_s"] < until_s:
                    until_s += each["total_s"]
        end_s = max(end_s, until_s)
    yield {"part": "shutdown", "start_s": end_s, "total_s": wall_s - end_s}


def time_by_part(spans: list[WallSpan], checkpoints_s: float = 0.0) -> dict[str, float]:
    """Return the total of each part; checkpoints are taken out of the gaps between epochs."""
    totals = dict.fromkeys(PARTS, 0.0)
    for span in spans:
        totals[span["part"]] += span["total_s"]
    moved_s = min(checkpoints_s, totals["gaps"])
    totals["gaps"] -= moved_s
    totals["checkpoints"] += checkpoints_s
    return {part: total_s for part, total_s in totals.items() if total_s > 0}

"""stepscope as a library: what `import stepscope` offers."""

from __future__ import annotations

import stepscope as library


def test_a_run_is_loaded_and_its_columns_are_read_by_name(stepscope, tiny):
    stepscope("run", *tiny)
    run = library.load_run(stepscope.folder / "runs" / "latest")
    assert run.status == "completed"
    assert len(run.steps["loss"]) == len(run.steps) == 20
    assert run.summary["phases"]["forward"]["share"] > 0
    assert [row["split"] for row in run.epochs.rows()].count("train") == 2
    first = [event["event"] for event in run.events[:3]]
    assert first == ["energy_sensors", "throttling_watched", "checkpoint"]

"""A real run on the tree of a board whose clock limit falls while it trains."""

from __future__ import annotations

from threading import Thread

from machine_trees import JETSON_NANO, write_tree
from polling import wait_until

from stepscope.records.run_reader import load_run

LOWERED_KHZ = 918_000
OFTEN = ("READ_EVERY_S", "_SAMPLE_EVERY_S", "_SAMPLE_SLOWLY_EVERY_S")
# Slow enough that the machine is checked several times in some epochs.
SLOW = ("--samples", 320, "--batch-size", 32, "--pipeline-delay-ms", 1, "--epochs", 3)


def test_steps_are_marked_from_when_the_clock_limit_falls(stepscope, tmp_path, monkeypatch):
    root, latest = write_tree(JETSON_NANO, tmp_path), stepscope.folder / "runs/latest"
    for name in OFTEN:
        monkeypatch.setattr(f"stepscope.telemetry.telemetry_sampler.{name}", 0.05)

    def lower_the_limit() -> None:
        wait_until(lambda: latest.exists() and len(load_run(latest).steps) > 5, every_s=0.05)
        for file in root.glob("sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq"):
            replacement = file.with_suffix(".new")
            replacement.write_text(f"{LOWERED_KHZ}\n")
            replacement.replace(file)

    lowering = Thread(target=lower_the_limit)
    lowering.start()
    done = stepscope("run", *SLOW, env={"STEPSCOPE_SYSTEM_ROOT": str(root)})
    lowering.join()
    assert done.code == 0, done.err
    run = load_run(latest)
    assert (run.throttled[0], run.throttled[-1]) == (False, True)
    found = run.summary["throttling"]
    assert 0 < found["steps"] < len(run.steps)
    assert found["ranges"]
    assert found["watched"] == ["temperature", "clock limit", "clock"]
    assert "throttled" in (run.path / "report.html").read_text()

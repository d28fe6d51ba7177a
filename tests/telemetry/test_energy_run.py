"""Real runs on the tree of a machine whose counters move while they train."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machine_trees import LAPTOP, Tree, write_tree

from stepscope.records.run_reader import load_run

ON_MAINS = {"sys/class/power_supply/BAT0/status": "Charging\n"}
# What the counters of package and psys count at a time: joules depend on how often, on no clock.
COUNTS_J = {"sys/class/powercap/intel-rapl:0": 0.4, "sys/class/powercap/intel-rapl:1": 0.6}
PSYS = "sys/class/powercap/intel-rapl:1/energy_uj"


@contextmanager
def moving(root: Path, until_gone: Callable[[], bool]) -> Iterator[None]:
    """Let package and psys count at the same times; psys goes when it is told to."""
    stop = threading.Event()

    def move() -> None:
        files = {root / zone / "energy_uj": count_j for zone, count_j in COUNTS_J.items()}
        while not stop.wait(0.02):
            if root / PSYS in files and until_gone():
                (root / PSYS).unlink()
                del files[root / PSYS]
            for file, count_j in files.items():
                counted = int(file.read_text()) + round(count_j * 1e6)
                replacement = file.with_suffix(".new")
                replacement.write_text(f"{counted}\n")
                replacement.replace(file)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        yield
    finally:
        stop.set()
        mover.join()


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("stepscope.telemetry.energy_sampler.IDLE_S", 0.3)
    monkeypatch.setattr("stepscope.telemetry.telemetry_sampler.READ_EVERY_S", 0.05)
    return write_tree(Tree("laptop", LAPTOP.source, {**LAPTOP.files, **ON_MAINS}), tmp_path)


def counts(domain: dict[str, Any], count_j: float) -> float:
    """Return how often a counter has counted, by the joules that are told of it."""
    joules: float = domain["joules"]
    assert domain["mean_w"] == pytest.approx(joules / domain["covered_s"])
    return joules / count_j


def test_a_run_tells_joules_by_domain_and_a_counter_that_goes_is_an_event(stepscope, tiny, laptop):
    def trains() -> bool:
        return any(len(file.read_text().splitlines()) > 2 for file in files())

    def files() -> Iterator[Path]:
        return stepscope.folder.glob("runs/*-*/steps.csv")

    with moving(laptop, until_gone=trains):
        environment = {"STEPSCOPE_SYSTEM_ROOT": str(laptop)}
        done = stepscope("run", *tiny, "--epochs", 1, "--pipeline-delay-ms", 5, env=environment)
    assert done.code == 0, done.err
    run = load_run(stepscope.folder / "runs/latest")
    energy: dict[str, Any] = run.summary["energy"]
    assert counts(energy["domains"]["package-0"], 0.4) > counts(energy["domains"]["psys"], 0.6) > 0
    (failed,) = energy["failed"]
    assert failed["domain"] == "psys"
    assert "energy_uj" in failed["reason"]
    assert energy["covers"] == ["package-0"]
    assert run.summary["energy_j"] == energy["domains"]["package-0"]["joules"]
    assert energy["idle_w"] is not None
    assert "is charging" in energy["refused"]["battery BAT0"]
    assert "rapl intel-rapl:1 psys" in (run.path / "report.html").read_text()
    assert 51.0 in run.telemetry["temperature_c"]
    assert any(run.telemetry["power_w"])


def test_energy_off_reads_no_sensor_and_says_so(stepscope, tiny, laptop):
    environment = {"STEPSCOPE_SYSTEM_ROOT": str(laptop)}
    done = stepscope("run", *tiny, "--max-steps", 1, "--energy", "off", "--json", env=environment)
    assert done.code == 0, done.err
    summary = done.json["summary"]
    assert (summary["energy_j"], summary["energy"]) == (None, None)
    assert summary["absent"]["energy_j"] == "not requested: --energy auto"
    run = load_run(stepscope.folder / "runs/latest")
    assert len(run.energy) == 0
    assert not any(event["event"].startswith("energy") for event in run.events)


def test_a_traced_script_has_its_joules_too(stepscope, laptop):
    script = stepscope.folder / "script.py"
    script.write_text(
        "import torch\n"
        "net = torch.nn.Linear(8, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(20):\n"
        "    optimizer.zero_grad()\n"
        "    net(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    with moving(laptop, until_gone=lambda: False):
        environment = {"STEPSCOPE_SYSTEM_ROOT": str(laptop)}
        done = stepscope("trace", "--json", "script.py", env=environment)
    assert done.code == 0, done.err
    energy = done.json["summary"]["energy"]
    assert energy["covers"] == ["psys"]
    package, psys = (energy["domains"][name] for name in ("package-0", "psys"))
    # Each may be read before or after the other has counted, at the begin and at the end.
    assert 0 < counts(psys, 0.6) == pytest.approx(counts(package, 0.4), abs=2, rel=0.1)
    assert energy["joules"] == psys["joules"]

"""A run predicts what a change would bring, with an interval, or refuses in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from written_tables import epoch_row, step, write_tables

import stepscope
from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.loader_simulation import Batch, Machine, SimulatedEpoch
from stepscope.analyze.step_model import step_model
from stepscope.analyze.what_if import MODEL_ERROR, expected_speedup, what_if
from stepscope.cli.report import report
from stepscope.errors import RequestError
from stepscope.records.run_reader import Run

STEPS = 40


def recorded(
    path: Path,
    training_s: float = 0.02,
    load_s: float = 0.0,
    load_cpu_s: float | None = None,
    data_s: float | None = None,
    workers: int = 0,
    threads: int = 1,
    jitter: Sequence[float] = (0.0,),
    epochs: Sequence[Mapping[str, Any]] = (),
    events: Sequence[Mapping[str, Any]] = (),
    summary: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Run:
    """Give a run of one epoch; without workers it waits for data as long as it loads it."""
    wait_s = load_s if data_s is None else data_s
    rows = []
    for number in range(1, STEPS + 1):
        took_s = wait_s + training_s + jitter[number % len(jitter)]
        row = step(number, data_s=wait_s, step_s=took_s, load_s=load_s, transfer_s=0.001)
        rows.append(
            row
            | {"load_cpu_s": load_s if load_cpu_s is None else load_cpu_s}
            | {"load_worker": number % workers if workers else -1, "start_s": number * took_s}
        )
    steps_s = sum(row["step_s"] for row in rows)
    train = {"split": "train", "loader_start_s": 0.1, "loader_stop_s": 0.1, "total_s": steps_s}
    info = {
        "spec": {"workers": workers},
        "environment": {"cpus_usable": 2, "threads": threads, "device": device},
        "summary": {"wall_s": steps_s + 10.0, **(summary or {})},
    }
    return write_tables(path, rows, [epoch_row(1, 0.0, **train), *epochs], events=events, **info)


# --- Workers


def test_workers_overlap_sleep(tmp_path: Path) -> None:
    run = recorded(tmp_path, load_s=0.1, load_cpu_s=0.001)
    assert what_if(run, "workers=1").step_s == pytest.approx(0.1, rel=0.1)
    assert what_if(run, "workers=2").step_s == pytest.approx(0.05, rel=0.1)
    assert what_if(run, "workers=8").step_s == pytest.approx(0.025, rel=0.2)


def test_a_worker_has_the_core_that_training_leaves_and_brings_little_without(
    tmp_path: Path,
) -> None:
    one, both = (
        recorded(tmp_path / str(threads), training_s=0.03, load_s=0.02, threads=threads)
        for threads in (1, 2)
    )
    assert what_if(one, "workers=1").step_s == pytest.approx(0.031, rel=0.06)
    assert what_if(both, "workers=1").speedup < 1.05


def test_the_measured_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path, load_s=0.03, load_cpu_s=0.01, data_s=0.01, workers=1)
    assert what_if(run, "workers=1").speedup == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("load_s", "cpu_s", "wanted"),
    [(0.0001, 0.0001, 0), (0.02, 0.001, 1), (0.04, 0.001, 2), (0.078, 0.001, 4)],
)
def test_the_fewest_workers_are_recommended(
    tmp_path: Path, load_s: float, cpu_s: float, wanted: int
) -> None:
    model = step_model(RunView(recorded(tmp_path, load_s=load_s, load_cpu_s=cpu_s)))
    assert model is not None
    best = model.best_workers()
    assert wanted <= best <= wanted + 1
    fastest_s = min(model.step_with(workers) for workers in range(9))
    assert model.step_with(best) <= 1.03 * fastest_s
    assert all(model.step_with(fewer) > 1.03 * fastest_s for fewer in range(best))


batches = st.builds(Batch, st.floats(0.001, 0.05), st.floats(0.0, 0.05))


@settings(max_examples=25, deadline=None)
@given(
    batch=batches,
    training_s=st.floats(0.002, 0.05),
    threads=st.sampled_from([1.0, 2.0]),
    workers=st.sampled_from([1, 2, 4]),
)
@example(Batch(0.046875, 0.03125), 0.002, 1.0, 4)
def test_a_simulated_epoch_is_between_its_limits(
    batch: Batch, training_s: float, threads: float, workers: int
) -> None:
    epoch = SimulatedEpoch([training_s] * STEPS, [batch] * STEPS, receive_s=0.0)
    found = epoch.with_workers(workers, Machine(2, threads))
    load_s = batch.cpu_s + batch.sleep_s
    assert found.step_s >= max(training_s, load_s / workers, batch.cpu_s / 2) * (1 - 1e-6)
    assert found.training_s >= training_s * (1 - 1e-6)
    assert found.load_s >= load_s * (1 - 1e-6)
    alone = epoch.with_workers(workers, Machine(64, threads))
    assert alone.step_s <= found.step_s * (1 + 1e-6)


@pytest.mark.parametrize("measured", [1, 2, 4])
@pytest.mark.parametrize("batch", [Batch(0.01, 0.0), Batch(0.004, 0.03), Batch(0.03, 0.01)])
def test_contention_that_was_measured_is_taken_out(
    tmp_path: Path, measured: int, batch: Batch
) -> None:
    true = SimulatedEpoch([0.012] * STEPS, [batch] * STEPS, receive_s=0.0)
    seen = true.with_workers(measured, Machine(2, 2.0))
    run = recorded(
        tmp_path,
        training_s=seen.training_s,
        load_s=seen.load_s,
        load_cpu_s=batch.cpu_s,
        data_s=seen.step_s - seen.training_s,
        workers=measured,
        threads=2,
    )
    free_s = what_if(run, "loader=free").step_s
    assert free_s == pytest.approx(0.012, rel=0.15)


# --- Intervals


def test_the_interval_contains_the_speedup_and_grows_with_noise(tmp_path: Path) -> None:
    steady = what_if(recorded(tmp_path / "steady", load_s=0.02), "loader=free")
    noisy_run = recorded(tmp_path / "noisy", load_s=0.02, jitter=[0.0] * 17 + [0.3])
    noisy = what_if(noisy_run, "loader=free")
    for found in (steady, noisy):
        low, high = found.interval
        assert low < found.speedup < high
    widths = [each.interval[1] / each.interval[0] for each in (steady, noisy)]
    assert widths[1] > widths[0]


@given(st.floats(0.1, 1e6), st.floats(-2, 1.2))
def test_no_saving_is_more_certain_than_the_model(wall_s: float, share: float) -> None:
    speedup, (low, high) = expected_speedup(wall_s, share * wall_s)
    assert 0 < low <= speedup <= high <= 51
    assert low >= 1 or share < 0
    left = 1 - share
    if 0.05 < share < 0.5:
        assert 1 / low - 1 / speedup == pytest.approx(MODEL_ERROR * min(share, left), rel=1e-3)


# --- Other changes


def test_a_free_loader_is_the_ceiling(tmp_path: Path) -> None:
    run = recorded(tmp_path, load_s=0.05, load_cpu_s=0.01)
    ceiling = what_if(run, "loader=free")
    assert ceiling.step_s == pytest.approx(0.02)
    for workers in range(9):
        assert what_if(run, f"workers={workers}").speedup <= ceiling.speedup + 1e-9


def test_evaluations_are_saved_but_the_first(tmp_path: Path) -> None:
    more = [epoch_row(n, n * 5.0, split="train") for n in (2, 3, 4)]
    tests = [epoch_row(n, n * 5.0 + 2, total_s=2.0) for n in (1, 2, 3, 4)]
    run = recorded(tmp_path, epochs=[*more, *tests], summary={"wall_s": 30.0})
    assert what_if(run, "evaluate_every=4").wall_s == pytest.approx(24.0)
    assert what_if(run, "evaluate-every=1").speedup == pytest.approx(1.0)


def test_checkpoints_are_those_of_a_script_or_of_a_built_in_run(tmp_path: Path) -> None:
    figures = {"count": 10, "total_s": 5.0, "in_steps_s": 5.0}
    script = recorded(tmp_path / "script", summary={"wall_s": 20.0, "checkpoints": figures})
    assert what_if(script, "checkpoint_every=1").wall_s == pytest.approx(15.5)
    events = [{"time_s": n, "event": "checkpoint", "took_s": 0.5} for n in range(10)]
    built_in = recorded(tmp_path / "run", events=events, summary={"wall_s": 20.0})
    assert what_if(built_in, "checkpoint_every=1").wall_s == pytest.approx(15.5)


def test_reads_in_steps_are_saved_and_others_are_not(tmp_path: Path) -> None:
    def read(where: str, activity: str = "synchronising read") -> dict[str, Any]:
        entry = {"where": where, "activity": activity, "line": "train.py:4", "code": "loss.item()"}
        return entry | {"total_s": 0.2, "samples": 10}

    stacks = [read("other"), read("evaluation"), read("other", "logging")]
    run = recorded(tmp_path, summary={"wall_s": 20.0, "stacks": stacks})
    found = what_if(run, "sync_reads=none")
    assert found.wall_s == pytest.approx(19.8)
    assert found.step_s == pytest.approx(0.02 - 0.2 / STEPS)


def test_pinned_memory_saves_what_the_device_idles(tmp_path: Path) -> None:
    device = {"bound_by": "data", "waits": {"data": 0.02, "host": 0.0, "launch": 0.0}}
    run = recorded(tmp_path, device="cuda:0", summary={"wall_s": 20.0, "device": device})
    assert what_if(run, "pin_memory=true").wall_s == pytest.approx(20.0 - 0.0004 * STEPS)


def test_workers_that_stay_are_not_started_again(tmp_path: Path) -> None:
    second = epoch_row(2, 5.0, split="train", loader_start_s=0.3, loader_stop_s=0.2)
    run = recorded(tmp_path, workers=2, epochs=[second], summary={"wall_s": 20.0})
    assert what_if(run, "persistent_workers=true").wall_s == pytest.approx(19.5)


def test_a_larger_batch_saves_the_fixed_part_of_a_step(tmp_path: Path) -> None:
    # Of each step, 1 ms (optimiser and other time) does not depend on the batch.
    found = what_if(recorded(tmp_path, training_s=0.01), "batch_size=64")
    assert found.step_s == pytest.approx(0.019)
    assert found.speedup > 1


# --- Questions and refusals


@pytest.mark.parametrize(
    "question",
    [
        *("workers", "workers=", "workers=-1", "workers=many", "worker=2", "loader=fast"),
        *("persistent_workers=true", "persistent_workers=no", "evaluate_every=2"),
        *("checkpoint_every=2", "batch_size=0", "pin_memory=true", "sync_reads=none"),
    ],
)
def test_a_refusal_says_what_was_wanted_and_found(tmp_path: Path, question: str) -> None:
    with pytest.raises(RequestError, match=r"^what-if: .*wanted .*, found .*stepscope "):
        what_if(recorded(tmp_path), question)


def test_a_run_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="wanted a run that has ended"):
        what_if(recorded(tmp_path, summary={"wall_s": None}), "loader=free")


def test_python_and_the_command_line_give_one_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, load_s=0.05, load_cpu_s=0.01)
    found = stepscope.what_if(stepscope.load_run(tmp_path), "workers=4")
    assert report(tmp_path, what_if="workers=4", json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == found.to_json()
    assert {"speedup", "interval", "step_s"} <= set(answer)
    assert report(tmp_path, what_if="workers=4") == 0
    assert "num_workers=4" in capsys.readouterr().out

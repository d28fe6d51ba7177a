"""What is planted in a run's records is found, and nothing is found that is not there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_tables import write_tables

from stepscope.analyze.findings import Finding, findings_of
from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.findings.wall_time_findings import work_in_loop
from stepscope.records import schema
from stepscope.records.run_reader import Run

PHASES_S = {"data": 0.0, "transfer": 0.0, "forward": 0.03, "backward": 0.06, "optimizer": 0.01}
Step = dict[str, Any]


@dataclass
class Planted:
    """A run of steps of 0.1 s that hardly differ, in three epochs, with something planted in it."""

    path: Path
    change: Callable[[int, Step], None] | Step = field(default_factory=dict)
    steps: int = 120
    epochs: int = 3
    epoch_s: Sequence[float] = ()
    evaluations: Sequence[Step] = ()
    telemetry: Sequence[dict[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    info: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Run:
        epochs = [*self._epochs(), *self.evaluations]
        tables = ([*self._steps()], epochs, [*self.telemetry])
        info = {"spec": {"workers": 0}, **self.info}
        return write_tables(self.path, *tables, events=self.events, **info)

    def findings(self) -> dict[str, Finding]:
        found = findings_of(self.run())
        assert all(0 < finding.weight <= 1 for finding in found)
        for finding in found:
            assert finding.text.endswith(".")
            assert finding.evidence
            json.dumps(finding.to_json())
        return {finding.name: finding for finding in found}

    def _steps(self) -> Iterable[Step]:
        jitter, each, start_s = random.Random(7), self.steps // self.epochs, 0.0
        for number in range(self.steps):
            step: Step = {"epoch": number // each + 1, "step": number % each + 1}
            step |= {"start_s": start_s, "samples": 8, "detail": "full", "other_s": 0.0}
            step |= {f"{phase}_s": s * jitter.uniform(0.99, 1.01) for phase, s in PHASES_S.items()}
            if callable(self.change):
                self.change(number, step)
            else:
                step |= self.change
            if "step_s" not in step:
                step["step_s"] = sum(step[f"{phase}_s"] for phase in schema.PHASES)
            start_s += step["step_s"]
            yield step

    def _epochs(self) -> Iterable[Step]:
        lengths = self.epoch_s or [4.0 + 0.01 * number for number in range(self.epochs)]
        start_s = 0.0
        for number, total_s in enumerate(lengths, 1):
            row = {"epoch": number, "split": "train", "start_s": start_s, "total_s": total_s}
            yield row | {"loader_start_s": 0.1, "loader_stop_s": 0.0}
            start_s += total_s


def test_a_steady_run_gives_no_finding(tmp_path: Path) -> None:
    assert Planted(tmp_path).findings() == {}


def some_cpu_times(number: int, step: Step) -> None:
    step |= {"data_s": 0.05, "load_s": 0.049, "load_worker": -1}
    if number % 5 == 0:  # a quick one
        step |= {"load_s": 0.001, "load_cpu_s": 0.00099}


def waiting_workers(number: int, step: Step) -> None:
    step |= {"data_s": 0.05, "load_s": 0.3, "load_cpu_s": 0.015, "load_worker": number % 2}


LOADED = {"data_s": 0.05, "load_s": 0.049, "load_cpu_s": 0.048, "load_worker": -1}


CPUS = {"environment": {"cpus_usable": 2, "threads": 1}}


@pytest.mark.parametrize(
    ("load", "workers", "ending", "on_cpu"),
    [
        (LOADED, 0, "waits for data, loaded in the training process.", "98.0 %"),
        (some_cpu_times, 0, "loaded in the training process.", "99.0 %"),  # of those that record it
        (LOADED | {"load_cpu_s": ""}, 0, "loaded in the training process.", ""),
        (waiting_workers, 2, "waits for data from 2 workers.", "5.0 %"),
    ],
)
def test_waiting_for_data_is_found_with_what_the_loader_did(
    tmp_path: Path, load: Any, workers: int, ending: str, on_cpu: str
) -> None:
    found = Planted(tmp_path, load, info={"spec": {"workers": workers}, **CPUS}).findings()
    assert set(found) == {"too_few_workers"}
    finding = found["too_few_workers"]
    assert finding.weight == pytest.approx(1 / 3, abs=0.01)
    assert finding.text.endswith(ending)
    assert any(f"to load, {on_cpu} of it on a CPU" in each for each in finding.evidence) == bool(
        on_cpu
    )
    assert finding.command == f"stepscope workers {tmp_path / 'run.json'}"


def test_workers_are_recommended_with_what_they_save(tmp_path: Path) -> None:
    finding = Planted(tmp_path, LOADED, info=CPUS).findings()["too_few_workers"]
    assert finding.change == "set num_workers=1, persistent_workers=True"
    assert finding.saves_s == pytest.approx(120 * 0.05, rel=0.1)  # all of the waiting
    # One that only waits for storage needs more of them than there are CPUs.
    slow = LOADED | {"data_s": 0.79, "load_s": 0.79, "load_cpu_s": 0.01}
    finding = Planted(tmp_path, slow, info=CPUS).findings()["too_few_workers"]
    assert finding.change == "set num_workers=8, persistent_workers=True"


def profile(**changes: Any) -> dict[str, Any]:
    parts = [
        {"kind": "transform", "name": "Blur", "line": "train.py:9", "share": 0.9, "samples": 90},
        {"kind": "read", "name": "read", "line": "train.py:4", "share": 0.1, "samples": 10},
    ]
    times = {"samples": 960, "sample_s": 0.006, "median_sample_s": 0.006}
    return {**times, "slow_share": 0.0, "slow_samples": [], "parts": parts, **changes}


def part(kind: str, line: str = "train.py:7") -> dict[str, Any]:
    return profile(parts=[{"kind": kind, "name": kind, "line": line, "share": 1.0, "samples": 50}])


SLOW = {"slow_share": 0.6, "slow_samples": [{"index": 7, "took_s": 0.3}]}


@pytest.mark.parametrize(
    ("loader", "name", "text"),
    [
        (profile(), "slow_transform", ": the transform Blur takes 90.0 % of loading."),
        (profile(**SLOW), "slow_samples", ": a few slow samples (index 7: 300 ms) take 60.0 %"),
        (part("read"), "slow_reads", ": reading files takes 100.0 %"),
        (part("decode"), "slow_decoding", ": decoding takes 100.0 %"),
        (part("collate"), "slow_collate", ": collating the batch takes 100.0 %"),
        (part("dataset"), "slow_dataset", ": train.py:7 takes 100.0 %"),
    ],
)
def test_the_part_of_loading_that_takes_most_is_named(
    tmp_path: Path, loader: dict[str, Any], name: str, text: str
) -> None:
    found = Planted(tmp_path, LOADED, info={"summary": {"loader": loader}, **CPUS}).findings()
    assert set(found) == {name}
    assert text in found[name].text


def test_slow_samples_are_not_hidden_behind_more_workers(tmp_path: Path) -> None:
    def load(number: int, step: Step) -> None:
        took_s = 0.301 if number % 5 == 0 else 0.001
        step |= {"data_s": took_s, "load_s": took_s, "load_cpu_s": 0.001, "load_worker": -1}

    info = {"summary": {"loader": profile(**SLOW), "samples": 960}, **CPUS}
    finding = Planted(tmp_path, load, info=info).findings()["slow_samples"]
    assert finding.change == "repair or drop these samples"
    assert finding.saves_s == pytest.approx(120 / 5 * 0.3, rel=0.05)


def test_cheaper_loading_saves_time_of_evaluations_too(tmp_path: Path) -> None:
    # On one CPU, workers would bring nothing.
    info = {"summary": {"loader": part("collate")}, "environment": {"cpus_usable": 1}}
    row = {"epoch": 1, "split": "test", "start_s": 10.0, "total_s": 6.0, "loading_s": 5.0}
    slow = LOADED | {"load_cpu_s": LOADED["load_s"]}
    without, with_evaluation = (
        Planted(tmp_path / str(len(rows)), slow, info=info, evaluations=rows).findings()
        for rows in ((), (row,))
    )
    saved_s = with_evaluation["slow_collate"].saves_s - without["slow_collate"].saves_s
    assert saved_s == pytest.approx(5.0)


def restarting(number: int, step: Step) -> None:
    first = step["step"] == 1
    step |= {"load_s": 0.01, "load_cpu_s": 0.01, "load_worker": number % 16}
    step["data_s"] = 1.0 if first else 0.0


@pytest.mark.parametrize(
    ("workers", "name", "change"),
    [
        (2, "worker_restarts", "set persistent_workers=True"),
        (16, "too_many_workers", "set num_workers=1, persistent_workers=True"),
    ],
)
def test_workers_started_in_every_epoch_are_found(
    tmp_path: Path, workers: int, name: str, change: str
) -> None:
    info = {"spec": {"workers": workers}, "summary": {"wall_s": 16.0}, **CPUS}
    found = Planted(tmp_path, restarting, info=info).findings()
    assert next(iter(found)) == name
    assert {"worker_restarts", "too_many_workers"} & set(found) == {name}
    assert found[name].change == change
    assert found[name].saves_s == pytest.approx(2 * (1.0 + 0.1))  # two epochs after the first


def stack(line: str, activity: str | None, total_s: float, where: str = "other") -> dict[str, Any]:
    named = {"where": where, "activity": activity, "line": line, "code": "call()"}
    return {**named, "total_s": total_s, "samples": int(total_s * 50)}


def in_loop(stacks: list[dict[str, Any]], other_s: float = 0.05, **summary: Any) -> dict[str, Any]:
    phases = {"other": {"share": 0.3, "mean_s": other_s}}
    return {"summary": {"wall_s": 18.0, "phases": phases, "stacks": stacks, **summary}}


def test_activities_and_lines_in_the_loop_are_found_with_what_they_cost(tmp_path: Path) -> None:
    stacks = [
        stack("train.py:40", "synchronising read", 2.0),
        stack("train.py:50", None, 1.5),
        stack("train.py:51", None, 1.5),
        stack("train.py:60", "checkpoint", 1.0),
    ]
    found = Planted(tmp_path, {"other_s": 0.05}, info=in_loop(stacks)).findings()
    assert list(found) == ["work_in_loop", "synchronising_reads"]
    # Of the 6 s in `other`, by the samples' shares.
    assert found["work_in_loop"].saves_s == pytest.approx(3.0)
    assert "train.py:50 and train.py:51 takes 16.7 % of the run" in found["work_in_loop"].text
    assert found["synchronising_reads"].saves_s == pytest.approx(2.0, rel=0.03)
    assert "device" not in f"{found['synchronising_reads']}"


def test_lines_of_a_function_count_for_the_line_of_the_loop_that_calls_it(tmp_path: Path) -> None:
    called = {"call": "train.py:70", "called": "writer.histogram(name, weight)"}
    stacks = [
        stack("log.py:10", None, 2.0) | called,
        stack("log.py:11", "synchronising read", 2.0) | called,
        stack("train.py:40", "synchronising read", 1.0),
        stack("train.py:50", None, 1.0),
    ]
    found = Planted(tmp_path, {"other_s": 0.05}, info=in_loop(stacks)).findings()
    assert list(found) == ["work_in_loop", "synchronising_reads"]
    assert "The code at train.py:70 and train.py:50 takes" in found["work_in_loop"].text
    assert "`writer.histogram(name, weight)`" in found["work_in_loop"].evidence[0]
    assert found["work_in_loop"].saves_s == pytest.approx(5.0)
    assert found["synchronising_reads"].saves_s == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize(
    ("inferred", "name", "saves_s"), [(True, "own_update", 4.0), (False, "work_in_loop", 6.0)]
)
def test_an_update_that_the_script_writes_itself_is_named_and_saves_a_part(
    tmp_path: Path, inferred: bool, name: str, saves_s: float
) -> None:
    stacks = [stack("train.py:20", None, 6.0) | {"call": "train.py:70", "called": "updater.step()"}]
    info = in_loop(stacks, steps_inferred=inferred)
    [found] = work_in_loop(RunView(Planted(tmp_path, {"other_s": 0.05}, info=info).run()))
    assert found.name == name
    assert found.saves_s == pytest.approx(saves_s)


def test_work_beside_a_busy_device_costs_no_more_than_its_idle_time(tmp_path: Path) -> None:
    stacks = [stack("train.py:40", "synchronising read", 6.0)]
    waits = {"data": 0.5, "host": 0.06, "launch": 0.04}
    idle = {"phases": {}, "issue_s": 0.0, "bound_by": "data", "waits": waits, "hidden": None}
    found = Planted(tmp_path, {"other_s": 0.05}, info=in_loop(stacks, device=idle)).findings()
    assert found["synchronising_reads"].saves_s == pytest.approx(
        120 * 0.015 * (1 - 1 / 50), rel=0.03
    )


def test_what_saves_time_comes_before_what_puts_figures_in_doubt(tmp_path: Path) -> None:
    def jump(number: int, step: Step) -> None:
        step["backward_s"] *= 2 if number % 2 else 1
        step["other_s"] = 0.02

    stacks = [stack("train.py:40", "logging", 2.0)]
    found = Planted(tmp_path, jump, info=in_loop(stacks, other_s=0.02)).findings()
    assert list(found) == ["logging_in_loop", "too_noisy"]
    assert found["logging_in_loop"].weight < found["too_noisy"].weight


def evaluations(count: int, each_s: float) -> list[Step]:
    row = {"split": "test", "total_s": each_s, "loader_start_s": 0.0, "loader_stop_s": 0.0}
    return [{"epoch": 1, "start_s": 20.0 + each_s * number} | row for number in range(count)]


@pytest.mark.parametrize(
    ("count", "each_s", "change", "saves_s"),
    [
        (12, 1.0, "evaluate once an epoch", 9.0),
        (3, 4.0, "evaluate every 3 epochs, or on fewer samples", 8.0),
        (3, 0.5, None, None),  # usual
    ],
)
def test_evaluations_that_take_much_of_the_run_are_found(
    tmp_path: Path, count: int, each_s: float, change: str | None, saves_s: float | None
) -> None:
    rows = evaluations(count, each_s)
    summary = {"wall_s": 12.0 + count * each_s}
    found = Planted(tmp_path, evaluations=rows, info={"summary": summary}).findings()
    assert set(found) == ({"frequent_evaluation"} if change else set())
    if change:
        assert found["frequent_evaluation"].change == change
        assert found["frequent_evaluation"].saves_s == pytest.approx(saves_s)


def test_checkpoints_in_every_step_are_found_with_their_line(tmp_path: Path) -> None:
    saved = {"count": 120, "total_s": 6.0, "in_steps_s": 6.0}
    stacks = [stack("train.py:60", "checkpoint", 6.0)]
    info = in_loop(stacks, other_s=0.0, checkpoints=saved)
    finding = Planted(tmp_path, info=info).findings()["frequent_checkpoints"]
    assert "120 calls of torch.save (train.py:60) in 3 epochs" in finding.text
    assert (finding.change, finding.saves_s) == ("save once an epoch", pytest.approx(5.85))


def test_pauses_between_epochs_are_found_without_their_checkpoints(tmp_path: Path) -> None:
    spans = [{"part": "gaps", "start_s": 4.0 * n, "total_s": 2.0} for n in (1, 2)]
    saved = {"count": 1, "total_s": 1.0, "in_steps_s": 0.0}
    stacks = [stack("train.py:70", None, 3.0, where="between epochs")]
    info = in_loop(stacks, other_s=0.0, checkpoints=saved, wall_time=spans)
    finding = Planted(tmp_path, info=info).findings()["gaps_between_epochs"]
    assert finding.text.endswith("take 16.7 % of the run (train.py:70).")
    assert finding.saves_s == pytest.approx(3.0)


def test_the_command_for_a_script_is_that_script_whatever_its_words(tmp_path: Path) -> None:
    spec = {"script": "my train.py", "module": None, "arguments": ["--name", "$(rm)"]}
    info = {"kind": "trace", "spec": spec, **CPUS}
    found = Planted(tmp_path, LOADED, info=info).findings()
    command = found["too_few_workers"].command
    assert command == "stepscope workers -- 'my train.py' --name '$(rm)'"


def test_a_slow_worker_is_named(tmp_path: Path) -> None:
    def load(number: int, step: Step) -> None:
        worker = number % 3
        step |= {"load_worker": worker, "load_s": 0.3 if worker == 1 else 0.1, "load_cpu_s": 0.1}
        step["data_s"] = 0.06 if worker == 1 else 0.0

    found = Planted(tmp_path, load, info={"spec": {"workers": 3}}).findings()
    assert found["uneven_workers"].text.startswith("Worker 1 takes 3.0 times as long")


def test_a_first_epoch_that_takes_longer_is_start_up(tmp_path: Path) -> None:
    found = Planted(tmp_path, epoch_s=[9.0, 4.0, 4.1]).findings()
    assert set(found) == {"start_up"}
    assert found["start_up"].weight == pytest.approx((9 - 4.05) / 17.1)
    # Of two epochs, either may be the usual one.
    assert Planted(tmp_path, epochs=2, epoch_s=[9.0, 4.0]).findings() == {}


def test_steps_far_from_the_median_are_counted_with_their_phase_and_what_happened(
    tmp_path: Path,
) -> None:
    def stall(number: int, step: Step) -> None:
        if number in (60, 80, 100):
            step["other_s"] = 1.0

    events = [{"time_s": 6.2, "event": "checkpoint", "stage": 1, "step": 20, "took_s": 1.0}]
    found = Planted(tmp_path, stall, events=events).findings()
    finding = found["far_steps"]
    assert finding.text.startswith("3 outlier steps take")
    assert "1 `checkpoint` events at those times" in finding.evidence


@pytest.mark.parametrize(
    ("factor", "course"),
    [
        (lambda number: 1 + number / 120, "slower"),
        (lambda number: 2 - number / 120, "faster"),
        (lambda number: 4 if number == 119 else 1, None),
        # Half of the steps take longer throughout, and the median of each third is one of either.
        (lambda number: 1.2 if number % 9 < (4 if number < 80 else 5) else 1, None),
    ],
)
def test_steps_that_get_slower_or_faster_drift_and_noise_is_no_drift(
    tmp_path: Path, factor: Callable[[int], float], course: str | None
) -> None:
    def change(number: int, step: Step) -> None:
        step |= {f"{phase}_s": took_s * factor(number) for phase, took_s in PHASES_S.items()}

    found = Planted(tmp_path, change).findings()
    assert set(found) == ({"drift"} if course else set())
    if course:
        assert f"Steps get {course}" in found["drift"].text


def memory(by_epoch_mib: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"time_s": 4.0 * epoch + 2 + part, "rss_bytes": int(size * 2**20)}
        for epoch, size in enumerate(by_epoch_mib)
        for part in (0.0, 1.0)
    ]


def test_memory_that_grows_in_every_epoch_is_found(tmp_path: Path) -> None:
    def findings(*sizes: float) -> dict[str, Finding]:
        return Planted(tmp_path, epochs=len(sizes), steps=150, telemetry=memory(sizes)).findings()

    growing = findings(900, 1000, 1050, 1100, 1150)["growing_memory"]
    assert "grows by 50.0 MiB per epoch" in growing.text
    for other in ((900, 1000, 1050, 1040, 1100), (500, 1000, 1001, 1002, 1003), (900, 1000, 1100)):
        assert findings(*other) == {}


def test_swap_that_was_there_before_is_no_finding_and_more_of_it_is(tmp_path: Path) -> None:
    before = [{"time_s": t, "swap_bytes": 2**30, "major_faults": 5} for t in range(5)]
    assert Planted(tmp_path, telemetry=before).findings() == {}
    more = [*before, {"time_s": 6, "swap_bytes": 2**31, "major_faults": 905}]
    spec = {"model": "resnet18", "batch_size": 64}
    finding = Planted(tmp_path, telemetry=more, info={"spec": spec}).findings()["swapping"]
    assert finding.command == "stepscope memory resnet18 --batch-size 64"
    assert "900 pages were read back from disk" in finding.evidence


@pytest.mark.parametrize(
    ("phase", "name", "share"),
    [
        ("optimizer", "large_optimizer", 0.05 / 0.15),
        ("transfer", "large_transfer", 0.05 / 0.15),
        ("other", "unattributed", 0.05 / 0.15),
        ("communication", "blocking_communication", 0.05 / 0.1),  # part of the backward pass
    ],
)
def test_a_phase_out_of_proportion_is_found(
    tmp_path: Path, phase: str, name: str, share: float
) -> None:
    found = Planted(tmp_path, {f"{phase}_s": 0.05}).findings()
    assert set(found) == {name}
    assert found[name].weight == pytest.approx(share, abs=0.03)


def test_a_run_too_short_or_too_noisy_says_so_first(tmp_path: Path) -> None:
    short = Planted(tmp_path, steps=20, epochs=1).findings()
    assert list(short) == ["too_short"]

    def jump(number: int, step: Step) -> None:
        step["backward_s"] *= 2 if number % 2 else 1

    assert next(iter(Planted(tmp_path, jump).findings())) == "too_noisy"


def test_what_went_wrong_on_the_way_is_told(tmp_path: Path) -> None:
    events = [
        {"time_s": 1, "event": "workers_fallback", "epoch": 1, "batch": 7, "from": 4, "to": 2}
        | {"split": "train", "reason": "a worker was killed"},
        {"time_s": 2, "event": "bad_sample", "path": "a.jpg", "reason": "cut short"},
        {"time_s": 3, "event": "requests_retried", "split": "train", "retries": 3}
        | {"waited_s": 0.5, "reasons": {"503": 3}},
    ]
    found = Planted(tmp_path, events=events).findings()
    assert list(found) == ["lost_workers", "bad_samples", "retried_requests"]
    assert "continued with 2 of 4" in found["lost_workers"].text


def test_a_costly_instrument_is_confessed(tmp_path: Path) -> None:
    info = {"instrument": {"overhead_share": 0.04, "overhead_per_step_s": 0.004}}
    assert "4.0 %" in Planted(tmp_path, info=info).findings()["costly_instrument"].text


def test_a_folder_without_steps_or_with_steps_of_no_time_has_no_finding(tmp_path: Path) -> None:
    assert Planted(tmp_path, steps=0).findings() == {}
    nothing = {f"{phase}_s": 0.0 for phase in schema.PHASES}
    assert Planted(tmp_path, nothing).findings() == {}


VALUES = st.one_of(st.none(), st.floats(0, 1e4), st.just(float("nan")))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.fixed_dictionaries({"load_s": VALUES, "loss": VALUES}), max_size=80), st.data())
def test_whatever_is_recorded_findings_never_fail(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Step], data: st.DataObject
) -> None:
    seconds = st.floats(0, 100)

    def anything(number: int, step: Step) -> None:
        drawn = {f"{phase}_s": data.draw(seconds) for phase in schema.PHASES}
        known = {name: value for name, value in rows[number].items() if value is not None}
        workers = data.draw(st.sampled_from(["", -1, 0, 1]))
        step |= drawn | known | {"load_worker": workers}

    Planted(tmp_path_factory.mktemp("any"), anything, steps=len(rows) // 3 * 3).findings()

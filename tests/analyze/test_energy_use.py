"""Joules from a folder alone: readings written by hand, and what they come to by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_tables import epoch_row, step, write_table, write_tables

from stepscope.analyze.energy_curve import curve_of, left_out
from stepscope.analyze.energy_use import (
    SeenSteps,
    energy_of,
    joules_by_phase,
    seen_steps,
)
from stepscope.analyze.findings import findings_of
from stepscope.analyze.run_summary import Measured, summarize
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.table import Table
from stepscope.records.types import EnergyFigures

RANGE_J = 262_143.328850
POWER_W = {"data": 5.0, "forward": 20.0, "backward": 30.0, "optimizer": 10.0}
Sensor = Mapping[str, Any]
Record = Callable[..., Run]


def sensor(name: str, domain: str, kind: str = "counter", **changes: Any) -> Sensor:
    range_j = RANGE_J if kind == "counter" else None
    about = {"name": name, "domain": domain, "kind": kind, "contains": [], "range_j": range_j}
    return {**about, "addable": True, **changes}


PACKAGE = sensor("rapl package", "package-0", contains=["package-0 core"])


def found(*sensors: Sensor, **changes: Any) -> dict[str, Any]:
    event = {"event": "energy_sensors", "time_s": 0.0, "sensors": sensors}
    return {**event, "refused": {}, "reason": None, **changes}


def rows_of(about: Sensor, readings: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    column = "energy_j" if about["kind"] == "counter" else "power_w"
    return [{"time_s": time_s, "sensor": about["name"], column: v} for time_s, v in readings]


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    def record(
        events: Sequence[Mapping[str, Any]], energy: Sequence[Any] = (), **tables: Any
    ) -> Run:
        write_tables(tmp_path, events=events, **tables)
        write_table(tmp_path, schema.ENERGY, energy)
        return load_run(tmp_path)

    return record


def steps_of(durations: Sequence[Mapping[str, float]], **changes: Any) -> list[dict[str, Any]]:
    """Give steps with these phases, one after the other from 0."""
    rows, start_s = [], 0.0
    for number, phases in enumerate(durations, 1):
        times = {f"{phase}_s": phases.get(phase, 0.0) for phase in schema.PHASES}
        step_s = sum(times.values())
        rows.append(step(number, start_s=start_s, step_s=step_s, **{**times, **changes}))
        start_s += step_s
    return rows


def counted(durations: Sequence[Mapping[str, float]], every_s: float) -> list[tuple[float, float]]:
    """Give what a counter would read each `every_s`, if each phase took its power exactly."""
    edges = [(0.0, 0.0)]
    for phases in durations:
        for phase in schema.PHASES:
            if took_s := phases.get(phase, 0.0):
                time_s, joules = edges[-1]
                edges.append((time_s + took_s, joules + took_s * POWER_W[phase]))
    readings = []
    for number in range(round(edges[-1][0] / every_s) + 1):
        time_s = number * every_s
        place = max(i for i, edge in enumerate(edges) if edge[0] <= time_s + 1e-9)
        before_s, before_j = edges[place]
        joules = before_j
        if place + 1 < len(edges):
            after_s, after_j = edges[place + 1]
            joules += (after_j - before_j) * (time_s - before_s) / (after_s - before_s)
        readings.append((time_s, joules))
    return readings


def figures_of(run: Run, **summary: Any) -> EnergyFigures:
    figures, reason = energy_of(run, summary)
    assert figures is not None, reason
    return figures


def seen_of(rows: list[dict[str, Any]]) -> SeenSteps:
    columns = {name: [row.get(name) for row in rows] for name in schema.STEP_COLUMNS}
    return seen_steps(Table(columns))


SAME = [{"data": 0.2, "forward": 0.3, "backward": 0.4, "optimizer": 0.1}] * 12


def mixed(chance: random.Random) -> list[dict[str, float]]:
    return [{phase: chance.randint(1, 9) * 0.01 for phase in POWER_W} for _ in range(300)]


MIXED = mixed(random.Random(7))
IDLE = {"event": "energy_idle", "time_s": 0.0, "readings": {}}
FINE = {**IDLE, "refresh_s": {PACKAGE["name"]: 1e-6}}


def test_phases_longer_than_the_sensors_period_are_measured_as_by_hand(recorded: Record) -> None:
    epochs = [epoch_row(1, 0.0, split="train", total_s=12.0)]
    energy = rows_of(PACKAGE, counted(SAME, 0.05))
    run = recorded([found(PACKAGE), FINE], energy, steps=steps_of(SAME), epochs=epochs)
    figures = figures_of(run, wall_s=12.0, samples=384, test_accuracy=0.6)
    # By hand: 12 steps of 0.2 s at 5 W, 0.3 s at 20 W, 0.4 s at 30 W, 0.1 s at 10 W: 20 J each.
    assert figures["joules"] == pytest.approx(240.0)
    assert figures["epochs"] == [{"epoch": 1, "split": "train", "joules": pytest.approx(240.0)}]
    by_hand = {"data": 12.0, "forward": 72.0, "backward": 144.0}
    for phase, joules in by_hand.items():
        assert figures["phases"][phase]["how"] == "measured"
        assert figures["phases"][phase]["joules"] == pytest.approx(joules)
    assert figures["phases"]["optimizer"]["how"] == "estimated"
    assert figures["phases"]["optimizer"]["joules"] == pytest.approx(12.0, rel=1e-3)
    assert figures["period_s"] == pytest.approx(0.05)
    assert figures["samples_per_j"] == pytest.approx(1.6)
    assert figures["accuracy_per_j"] == pytest.approx(0.0025)
    assert figures["accuracy_per_s"] == pytest.approx(0.05)


def test_shorter_phases_are_estimated_over_windows_that_end_at_readings(recorded: Record) -> None:
    energy = rows_of(PACKAGE, counted(MIXED, 0.05))
    run = recorded([found(PACKAGE), FINE], energy, steps=steps_of(MIXED))
    figures = figures_of(run)
    for phase, power_w in POWER_W.items():
        each = figures["phases"][phase]
        by_hand = power_w * sum(phases[phase] for phases in MIXED)
        assert each["how"] == "estimated"
        assert each["joules"] == pytest.approx(by_hand, rel=1e-3)
    assert "too short" in figures["phases"]["transfer"]["reason"]


def test_the_interval_of_an_estimate_holds_the_truth_whatever_the_noise_and_the_lag() -> None:
    held = 0
    for seed in range(10):
        chance = random.Random(seed)
        durations = mixed(chance)
        truth = dict.fromkeys(POWER_W, 0.0)
        used: list[tuple[float, float]] = [(0.0, 0.0)]
        for phases in durations:
            for phase, took_s in phases.items():
                joules = took_s * POWER_W[phase] * chance.uniform(0.7, 1.3)
                truth[phase] += joules
                used.append((used[-1][0] + took_s, used[-1][1] + joules))
        exact = curve_of(used, "counter")
        lag_s = 0.01
        times_s = [number * 0.1 for number in range(int(used[-1][0] * 10))]
        read = [(t, exact.at(max(0.0, t - chance.uniform(0.0, lag_s)))) for t in times_s]
        curve = curve_of(read, "counter")
        seen = seen_of(steps_of(durations))
        estimated = joules_by_phase(seen, curve, lag_s, in_one_piece=True)
        for phase, joules in truth.items():
            low, high = estimated[phase]["interval"]
            held += low <= joules <= high
    assert held >= 38  # of 40, by an interval of 95 %


def test_phases_within_the_sensors_lag_are_not_told_apart(recorded: Record) -> None:
    energy = rows_of(PACKAGE, counted(MIXED, 0.05))
    stale = {**FINE, "refresh_s": {PACKAGE["name"]: 0.1}}
    fine, rough = (
        figures_of(recorded([found(PACKAGE), idle], energy, steps=steps_of(MIXED)))
        for idle in (FINE, stale)
    )
    for phase in POWER_W:
        low, high = fine["phases"][phase]["interval"]
        wide = rough["phases"][phase]["interval"]
        assert wide is None or wide[1] - wide[0] > 5 * (high - low)


@pytest.mark.parametrize(
    "changes", [{"kind": "trace"}, {"spec": {"accumulate": 4}}], ids=["trace", "accumulate"]
)
def test_phases_that_may_come_in_pieces_are_never_cut_out(
    changes: dict[str, Any], recorded: Record
) -> None:
    energy = rows_of(PACKAGE, counted(SAME, 0.05))
    run = recorded([found(PACKAGE)], energy, steps=steps_of(SAME), **changes)
    figures = figures_of(run)
    assert "measured" not in {each["how"] for each in figures["phases"].values()}


def test_the_energy_of_one_machine_is_not_told_as_that_of_several(recorded: Record) -> None:
    run = recorded([found(PACKAGE)], rows_of(PACKAGE, [(0.0, 0.0), (10.0, 50.0)]))
    hosts = ("here", "there")
    here, there = ({"ranks": [{"host": host} for host in each]} for each in (hosts[:1] * 2, hosts))
    assert energy_of(run, here)[0] is not None
    reason = "the ranks were on 2 machines, and sensors of only one were read"
    assert energy_of(run, there) == (None, reason)


@pytest.mark.parametrize(
    ("kind", "readings", "joules", "end_s", "bridged_s"),
    [
        # A counter that jumps back is bridged at the mean power.
        ("counter", [(0.0, 500.0), (1.0, 510.0), (2.0, 3.0), (3.0, 13.0)], 30.0, 3.0, 1.0),
        # One that wraps counts on.
        ("counter", [(0.0, RANGE_J - 5), (1.0, RANGE_J - 1), (2.0, 5.0)], 10.0, 2.0, 0.0),
        # One that stalls ends where it last moved.
        ("counter", [*((t / 10, t * 1.0) for t in range(11)), (2.0, 10.0), (30.0, 10.0)], 10, 1, 0),
        # Power is integrated by trapezoids.
        ("power", [(0.0, 4.0), (1.0, 6.0), (3.0, 6.0)], 17.0, 3.0, 0.0),
    ],
)
def test_readings_become_joules(
    kind: str,
    readings: list[tuple[float, float]],
    joules: float,
    end_s: float,
    bridged_s: float,
) -> None:
    curve = curve_of(readings, kind, RANGE_J)
    assert curve.joules[-1] == pytest.approx(joules)
    assert (curve.end_s, curve.bridged_s) == (end_s, bridged_s)
    assert curve.between(end_s + 8, end_s + 9) is None


def test_a_counter_that_is_seldom_updated_is_followed_from_change_to_change() -> None:
    # 10 W, updated once a second, read ten times a second.
    readings = [(t / 10, float(t // 10 * 10)) for t in range(101)]
    curve = curve_of(readings, "counter")
    assert curve.period_s == pytest.approx(1.0)
    assert curve.between(2.25, 3.75) == pytest.approx(15.0)


def test_too_few_readings_of_a_counter_give_no_curve() -> None:
    for readings in ([], [(0.0, 1.0)], [(0.0, 5.0), (1.0, 5.0)]):
        assert curve_of(readings, "counter") is None


@given(st.lists(st.tuples(st.floats(0.05, 2.0), st.integers(1, 900)), min_size=3, max_size=40))
def test_the_parts_of_a_curve_add_up_to_the_whole(pieces: list[tuple[float, int]]) -> None:
    readings, time_s, joules = [(0.0, 0.0)], 0.0, 0
    for took_s, more in pieces:
        time_s, joules = time_s + took_s, joules + more
        readings.append((time_s, float(joules)))
    curve = curve_of(readings, "counter")
    third_s = time_s / 3
    parts = [curve.between(n * third_s, (n + 1) * third_s) or 0.0 for n in range(3)]
    assert sum(parts) == pytest.approx(joules)
    assert all(part >= -1e-6 for part in parts)


def test_a_resumed_run_does_not_pay_for_the_time_between(recorded: Record) -> None:
    readings = [(0.0, 0.0), (1.0, 10.0), (2.0, 20.0), (2.1, 5_000.0), (3.1, 5_010.0)]
    back = {"event": "resume", "time_s": 2.05}
    figures = figures_of(recorded([found(PACKAGE), back], rows_of(PACKAGE, readings)))
    assert figures["joules"] == pytest.approx(31.0)
    assert figures["bridged_s"] == pytest.approx(0.1)


def test_time_that_a_resumed_run_lives_through_again_is_counted_once() -> None:
    power = [(0.0, 5.0), (1.0, 5.0), (2.0, 5.0), (1.5, 5.0), (2.5, 5.0), (3.0, 5.0)]
    curve = curve_of(power, "power", away_s=[1.5])
    assert curve.times_s == [0.0, 1.0, 1.5, 2.5, 3.0]
    assert curve.joules[-1] == pytest.approx(15.0)


def test_domains_are_told_one_by_one_and_only_the_widest_are_added(recorded: Record) -> None:
    core, memory = sensor("rapl core", "package-0 core"), sensor("rapl dram", "package-0 dram")
    energy = [
        *rows_of(PACKAGE, [(0.0, 0.0), (5.0, 50.0), (10.0, 100.0)]),
        *rows_of(core, [(0.0, 0.0), (5.0, 30.0), (10.0, 60.0)]),
        *rows_of(memory, [(0.0, 0.0), (5.0, 10.0), (10.0, 20.0)]),
    ]
    figures = figures_of(recorded([found(PACKAGE, core, memory)], energy))
    assert figures["joules"] == pytest.approx(120.0)
    assert figures["covers"] == ["package-0", "package-0 dram"]
    assert {name: each["joules"] for name, each in figures["domains"].items()} == pytest.approx(
        {"package-0": 100.0, "package-0 core": 60.0, "package-0 dram": 20.0}
    )
    assert "any GPU" in figures["leaves_out"]
    assert "memory" not in figures["leaves_out"]


@pytest.mark.parametrize(
    ("covers", "contains", "words"),
    [
        (["battery"], ["*"], []),
        (["battery 2"], ["*"], []),
        (["VDD_IN"], ["*"], ["module's input"]),
        (["apu hwmon3"], ["package-0"], ["memory", "the rest of the machine"]),
        (["gpu0"], [], ["the CPU and its memory", "the rest of the machine"]),
    ],
)
def test_what_a_total_leaves_out_is_said_in_words(
    covers: list[str], contains: list[str], words: list[str]
) -> None:
    said = left_out(covers, covers, dict.fromkeys(covers, contains))
    assert len(said) == len(words)
    for sentence, word in zip(said, words, strict=True):
        assert word in sentence


def test_steps_without_a_time_of_the_device_are_extrapolated_over() -> None:
    on_device = {f"{phase}_device_s": 0.2 for phase in schema.DEVICE_PHASES}
    rows = [step(1, step_s=1.0, **on_device), step(2, step_s=1.0), step(3, step_s=1.0)]
    seen = seen_of(rows)
    assert (len(seen.start_s), seen.unseen) == (1, 3.0)


def test_when_a_boards_input_fails_the_total_is_that_of_its_rails(recorded: Record) -> None:
    board = sensor("ina3221 VDD_IN", "VDD_IN", "power", contains=["*"])
    rails = [sensor(f"ina3221 {name}", name, "power") for name in ("CPU", "SOC")]
    energy = rows_of(board, [(0.0, 10.0), (4.0, 10.0)])
    for rail in rails:
        energy += rows_of(rail, [(0.0, 3.0), (4.0, 3.0), (10.0, 3.0)])
    failed = {"time_s": 4.0, "sensor": "ina3221 VDD_IN", "domain": "VDD_IN"}
    failed |= {"event": "energy_sensor_failed", "reason": "gone"}
    figures = figures_of(recorded([found(board, *rails), failed], energy))
    assert (figures["covers"], figures["joules"]) == (["CPU", "SOC"], pytest.approx(60.0))
    assert figures["failed"][0]["reason"] == "gone"


def test_what_the_machine_took_before_is_told_apart(recorded: Record) -> None:
    readings = {PACKAGE["name"]: [[0.0, 100.0], [0.5, 102.0], [1.0, 104.0]]}
    idle = {**IDLE, "readings": readings}
    energy = rows_of(PACKAGE, [(0.0, 104.0), (5.0, 154.0), (10.0, 204.0)])
    figures = figures_of(recorded([found(PACKAGE), idle], energy))
    assert figures["idle_w"] == pytest.approx(4.0)
    assert figures["above_idle_j"] == pytest.approx(60.0)


def test_rails_of_which_nobody_knows_what_they_feed_have_no_total(recorded: Record) -> None:
    rail = sensor("ina226", "ina226", "power", addable=False)
    figures, reason = energy_of(
        recorded([found(rail)], rows_of(rail, [(0.0, 2.0), (1.0, 3.0), (2.0, 2.0)])), {}
    )
    assert figures["joules"] is None
    assert "unknown" in reason
    assert figures["domains"]["ina226"]["joules"] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("events", "spec", "reason"),
    [
        ([found()], {"energy": "off"}, "not requested: --energy auto"),
        ([], {}, "no energy sensor was read during this run"),
        ([found(reason="this machine shows no energy sensor")], {}, "this machine shows no"),
        ([found(PACKAGE)], {}, "no energy sensor gave two different readings"),
    ],
)
def test_without_joules_there_is_a_reason_and_no_zero(
    events: list[Any], spec: dict[str, Any], reason: str, recorded: Record
) -> None:
    summary = summarize(recorded(events, spec=spec, steps=steps_of(SAME)), Measured())
    assert (summary["energy"], summary["energy_j"]) == (None, None)
    assert reason in summary["absent"]["energy_j"]


def test_steps_in_a_time_of_throttling_are_a_finding(recorded: Record) -> None:
    events = [
        {"event": "throttling_watched", "time_s": 0.0, "what": ["clock"]},
        {"event": "throttling", "time_s": 3.5, "what": "clock", "from": 1479.0, "to": 921.6}
        | {"unit": "MHz"},
        {"event": "throttling_ended", "time_s": 5.5, "what": "clock", "lasted_s": 2.0},
        {"event": "throttling", "time_s": 11.5, "what": "device held back", "reasons": "power cap"},
    ]
    (told,) = [
        finding
        for finding in findings_of(recorded(events, steps=steps_of(SAME)))
        if finding.name == "throttling"
    ]
    assert "4 of 12 steps" in told.text
    assert "at 3.5 s for 2 s: clock from 1,479 to 921.6 MHz" in told.evidence
    assert "at 11.5 s until the end: device held back by power cap" in told.evidence

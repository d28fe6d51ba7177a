"""The one sentence that a comparison ends with: which side to use, and what it brings."""

from __future__ import annotations

import pytest
from written_runs import write_sweep

from stepscope.analyze.comparison import compare, compare_settings
from stepscope.analyze.comparison_sides import read_sides
from stepscope.analyze.comparison_verdict import format_rounds
from stepscope.records.sweep_folder import load_sweep

CALM = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0]


def times(factor: float) -> list[float]:
    return [rate * factor for rate in CALM]


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            {0: CALM, 1: times(1.5), 2: times(1.9)},
            "Use workers=2: 1.9 times faster than workers=0 (",
        ),
        ({0: CALM, 2: times(0.5)}, "Keep workers=0: workers=2 is slower, 0.5 times as fast ("),
        (
            {0: CALM, 2: CALM[::-1]},
            "Keep workers=0: workers=2 is not shown to be faster or slower (",
        ),
        (
            {0: CALM, 1: times(0.5), 2: CALM[::-1]},
            "Keep workers=0: none of the 2 others is shown to be faster.",
        ),
        (
            {0: CALM[:2], 2: times(2)[:2]},
            "Undecided: workers=2 looks fastest, but there are too few",
        ),
        (
            {0: CALM[:4], 2: [50.0, 400.0, 90.0, 250.0]},
            "Undecided: workers=2 looks 1.45 times as fast as workers=0, but the rounds differ too",
        ),
    ],
)
def test_a_sweep_ends_with_what_to_use(tmp_path, rates, said):
    write_sweep(tmp_path / "sweep", {"workers": list(rates)}, rates)
    found = compare(read_sides([str(tmp_path / "sweep")]))["verdict"]
    assert found["text"].startswith(said), found
    assert compare_settings(load_sweep(tmp_path / "sweep"))["verdict"] == found
    used = said.startswith("Use")
    assert (found["expected_speedup"] is not None) == (found["interval"] is not None) == used
    assert found["command"] is None or found["cause"] == "undecided"


def test_settings_as_fast_as_the_best_are_named_and_none_is_called_equal(tmp_path):
    rates = {0: CALM, 1: times(1.9), 2: times(2)[::-1], 4: times(1.5)}
    write_sweep(tmp_path / "sweep", {"workers": list(rates)}, rates)
    found = compare(read_sides([str(tmp_path / "sweep")]))["verdict"]
    assert found["text"].startswith("Use workers=2: 2 times faster than workers=0 (")
    assert "Not shown to be" not in found["text"]
    alike = {**rates, 1: times(1.99)}
    write_sweep(tmp_path / "alike", {"workers": list(alike)}, alike)
    found = compare(read_sides([str(tmp_path / "alike")]))["verdict"]
    assert found["text"].endswith("Not shown to be slower than it: workers=1.")


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        (None, "more than 200 rounds"),
        ((12, 30), "12 to 30 rounds"),
        ((3, 3), "3 rounds"),
        ((120, None), "120 rounds or many more"),
    ],
)
def test_rounds_are_a_range(rounds, words):
    assert format_rounds(rounds) == words


def test_a_sweep_of_one_setting_has_nothing_to_compare(tmp_path):
    write_sweep(tmp_path / "sweep", {"workers": [0]}, {0: CALM})
    assert compare_settings(load_sweep(tmp_path / "sweep")) is None

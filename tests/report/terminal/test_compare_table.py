"""The one sentence that a comparison ends with: which side to use, and what it brings."""

from __future__ import annotations

import pytest
from written_runs import write_sweep

from stepscope.analyze.comparison import compare
from stepscope.analyze.comparison_sides import read_sides
from stepscope.records.sweep_folder import load_sweep
from stepscope.report.terminal.compare_table import conclusion_of
from stepscope.report.terminal.sweep_table import answer_of_sweep

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
            "Keep workers=0: workers=2 is not measurably faster or slower (",
        ),
        (
            {0: CALM, 1: times(0.5), 2: CALM[::-1]},
            "Keep workers=0: none of the 2 others is measurably faster.",
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
    sentence = conclusion_of(compare(read_sides([str(tmp_path / "sweep")])))
    assert sentence.startswith(said), sentence
    assert answer_of_sweep(load_sweep(tmp_path / "sweep")) == sentence


def test_a_sweep_of_one_setting_has_nothing_to_compare(tmp_path):
    write_sweep(tmp_path / "sweep", {"workers": [0]}, {0: CALM})
    assert answer_of_sweep(load_sweep(tmp_path / "sweep")) is None

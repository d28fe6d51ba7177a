"""A sweep that was asked to stop stops, whatever its trial made of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyze.where_time_goes import summarize
from stepscope.errors import Interrupted
from stepscope.experiments import sweep as sweeps
from stepscope.experiments.subjects import Attempt
from stepscope.experiments.supervise import Outcome
from stepscope.experiments.trial import Nobody
from stepscope.records import schema
from stepscope.records.sweep import Trial, load_sweep


class Onlooker(Nobody):
    """Looks on without a word."""

    def trying(self, trial: Trial, trials: int | None, left_s: float | None) -> None: ...

    def tried(self, trial: Trial) -> None: ...


@dataclass(frozen=True)
class Asked:
    """A subject whose every trial is asked to stop, and ends in some way."""

    status: str

    def check(self, values: Mapping[str, Any]) -> None: ...

    def run(self, values: Mapping[str, Any], attempt: Attempt) -> Outcome:
        return Outcome(self.status, "in its own way", 1, asked_to_stop=True)

    def to_json(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("status", "noted"),
    [(schema.FAILED, schema.INTERRUPTED), (schema.COMPLETED, schema.COMPLETED)],
)
def test_a_trial_that_fails_or_ends_when_asked_to_stop_ends_the_sweep(
    tmp_path: Path, status: str, noted: str
) -> None:
    request = sweeps.Request([{"workers": 0}, {"workers": 1}], 2, out=tmp_path, name="asked")
    with pytest.raises(Interrupted):
        sweeps.start(Asked(status), request, Onlooker(), summarize)
    sweep = load_sweep(tmp_path / "latest")
    assert sweep.info["status"] == schema.INTERRUPTED
    assert [trial.status for trial in sweep.trials] == [noted, *[schema.PENDING] * 3]

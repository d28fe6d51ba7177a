"""A sweep that was asked to stop stops, whatever its trial made of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from quiet_lab import QuietListener

from stepscope.errors import Interrupted
from stepscope.experiments import sweep_run
from stepscope.experiments.workload import TrialRequest
from stepscope.records import schema
from stepscope.records.sweep_folder import load_sweep
from stepscope.supervisor.child_supervisor import Outcome


@dataclass(frozen=True)
class Asked:
    """A workload whose every trial is asked to stop, and ends in some way."""

    status: str

    def check(self, values: Mapping[str, Any]) -> None: ...

    def run(self, values: Mapping[str, Any], trial_request: TrialRequest) -> Outcome:
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
    request = sweep_run.SweepRequest(
        [{"workers": 0}, {"workers": 1}], 2, out=tmp_path, name="asked"
    )
    with pytest.raises(Interrupted):
        sweep_run.start(Asked(status), request, QuietListener())
    sweep = load_sweep(tmp_path / "latest")
    assert sweep.info["status"] == schema.INTERRUPTED
    assert [trial.status for trial in sweep.trials] == [noted, *[schema.PENDING] * 3]

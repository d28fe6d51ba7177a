"""Scripts as people write them, traced: what is recorded is what they did, and how long it took."""

from __future__ import annotations

import csv
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from as_a_person import ENVIRONMENT, Answer, Stepscope

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"

TIMED = ["plain_cifar", "gan", "accumulation", "text", "lightning_trainer", "hf_trainer"]
PHASES = ["data", "transfer", "forward", "backward", "optimizer"]

# How many samples a script trains on: batches that are fetched ahead or twice count once.
SAMPLES = {
    "plain_cifar": 2 * 1920,
    "gan": 2 * 320,
    "text": 2 * 640,
    "lightning_trainer": 2 * 640,
    "hf_trainer": 2 * 640,
    "accelerate_loop": 2 * 800,
    "validation_inside": 2 * 800,
    "iterable": 2 * 1280,
}

# A script with its arguments, as one would type it.
CASES = [
    *TIMED,
    "accelerate_loop",
    "amp_scaler",
    "compiled",
    "ddp",
    "distillation",
    "iterable",
    "lbfgs",
    "loader_each_epoch",
    "no_loader",
    "plain_cifar --workers 2",
    "spawn_workers",
    "two_loaders",
    "validation_inside",
    "wgan",
]
VARIANTS = [
    "amp_scaler --dtype float16",
    "compiled --backend aot_eager",
    "compiled --in-place",
    "hf_trainer --gradient-accumulation-steps 3",
    "iterable --workers 0",
    "lightning_trainer --accumulate 3",
    "loader_each_epoch --workers 2",
    "loader_each_epoch --workers 2 --persistent-workers",
    "spawn_workers --context forkserver",
]
# The same training with timers placed by hand: both clocks see the very same execution.
TWINS = [f"timed/{name}" for name in TIMED]
EACH = [
    *CASES,
    *[pytest.param(case, marks=pytest.mark.alone) for case in TWINS],
    *[pytest.param(case, marks=pytest.mark.long) for case in VARIANTS],
]


@dataclass(frozen=True)
class Traced:
    """What a traced script left: stepscope's answer, and what the script itself said."""

    answer: Answer
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        return dict(self.answer.json["summary"])

    def said(self, name: str) -> Any:
        """Give what the script printed as `name=...`."""
        found = re.findall(rf"^{name}=(.+)$", self.answer.err, re.MULTILINE)
        assert len(found) == 1, self.answer.err
        return json.loads(found[0])

    def losses(self) -> list[str]:
        pattern = r"^.*\bloss\w*:? -?\d.*$"
        return re.findall(pattern, self.answer.err, re.MULTILINE | re.IGNORECASE)

    def epochs(self) -> list[dict[str, str]]:
        path = self.folder / self.answer.json["path"] / "epochs.csv"
        with path.open(newline="", encoding="utf-8") as rows:
            return list(csv.DictReader(rows))

    def splits(self) -> set[str]:
        return {row["split"] for row in self.epochs()}


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def one_rank() -> dict[str, str]:
    """Give what torchrun would tell a script that it starts alone."""
    places = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return {**places, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Traced]:
    """Give a function that traces a script, once for all tests that ask for it."""
    done: dict[str, Traced] = {}

    def traced(case: str) -> Traced:
        if case not in done:
            name, *args = case.split()
            folder = tmp_path_factory.mktemp("trace")
            answer = Stepscope(folder)(
                *("trace", "--out", folder / "runs", "--json", SCRIPTS / f"{name}.py", *args),
                env=one_rank() if name == "ddp" else {},
            )
            done[case] = Traced(answer, folder)
        assert done[case].answer.code == 0, done[case].answer.err
        return done[case]

    return traced


@pytest.mark.parametrize("case", EACH)
def test_a_traced_script_leaves_a_completed_trace(trace, case: str):
    run = trace(case).answer.json
    assert (run["kind"], run["status"]) == ("trace", "completed")


@pytest.mark.parametrize("case", EACH)
def test_a_step_is_an_update_that_the_script_made(trace, case: str):
    traced = trace(case)
    assert traced.summary["steps"] == traced.said("updates")


@pytest.mark.parametrize("case", EACH)
def test_the_steps_account_for_the_time_of_the_epochs(trace, case: str):
    assert 0.98 <= trace(case).summary["closure"] <= 1.02


@pytest.mark.parametrize("case", SAMPLES)
def test_each_sample_that_is_trained_on_is_counted_once(trace, case: str):
    assert trace(case).summary["samples"] == SAMPLES[case]


@pytest.mark.alone
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("case", TWINS)
def test_a_phase_lasts_as_long_as_timers_placed_by_hand_say(trace, case: str, phase: str):
    traced = trace(case)
    timers = traced.said("timers")
    by_hand_s = timers[phase]
    traced_s = traced.summary["phases"][phase]["total_s"]
    allowed_s = max(0.05 * by_hand_s, 0.3e-3 * timers["steps"])
    # Our own work between steps falls into one of the timers, and into none of our phases.
    allowed_s += traced.answer.json["instrument"]["overhead_per_step_s"] * timers["steps"]
    assert traced_s == pytest.approx(by_hand_s, rel=0, abs=allowed_s)


@pytest.mark.long
@pytest.mark.parametrize("name", TIMED)
def test_the_script_with_timers_trains_as_the_one_without(trace, name: str):
    losses = trace(name).losses()
    assert losses
    assert trace(f"timed/{name}").losses() == losses


@pytest.mark.parametrize(
    "case",
    [
        "plain_cifar",
        "text",
        "validation_inside",
        "accelerate_loop",
        "lightning_trainer",
        "hf_trainer",
    ],
)
def test_an_evaluation_with_a_loader_of_its_own_has_a_row_of_its_own(trace, case: str):
    assert trace(case).splits() == {"train", "test"}


@pytest.mark.parametrize(
    ("case", "samples"),
    [("plain_cifar", 640), ("accelerate_loop", 160), ("hf_trainer", 128)],
)
def test_an_evaluation_has_one_row_and_each_sample_once(trace, case: str, samples: int):
    tests = [row for row in trace(case).epochs() if row["split"] == "test"]
    assert [(row["epoch"], row["samples"]) for row in tests] == [
        ("1", str(samples)),
        ("2", str(samples)),
    ]


@pytest.mark.parametrize("case", ["distillation", "gan", "two_loaders"])
def test_a_model_called_without_gradients_within_a_step_is_no_evaluation(trace, case: str):
    assert trace(case).splits() == {"train"}


def test_a_traced_script_prints_what_it_prints_alone(trace):
    alone = subprocess.run(
        [sys.executable, str(SCRIPTS / "plain_cifar.py")],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    lines = iter(trace("plain_cifar").answer.err.splitlines())
    missing = [line for line in alone.stdout.splitlines() if line not in lines]
    assert not missing

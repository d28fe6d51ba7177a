"""Scripts as people write them, traced: what is recorded is what they did, and how long it took."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
from polling import free_port
from stepscope_command import Answer, Stepscope, closes

from stepscope.records.run_reader import Run, load_run

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"

# These are traced with timers placed by hand: both clocks see the very same execution.
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
    "plain_cifar --workers 2 --epochs 1",
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
EACH = [*CASES, *[pytest.param(case, marks=pytest.mark.long) for case in VARIANTS]]


@dataclass(frozen=True)
class Traced:
    """What a traced script left: stepscope's answer, and what the script itself said."""

    answer: Answer
    folder: Path

    @cached_property
    def run(self) -> Run:
        return load_run(self.folder / self.answer.json["path"])

    def said(self, name: str) -> Any:
        """Give what the script printed as `name=...`."""
        found = re.findall(rf"^{name}=(.+)$", self.answer.err, re.MULTILINE)
        assert len(found) == 1, self.answer.err
        return json.loads(found[0])


def with_timers(name: str, folder: Path) -> Path:
    """Give a script with timers where its comments want them, or its twin that has some."""
    if (twin := SCRIPTS / f"timed_{name}.py").exists():
        return twin
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    for place, timer in {
        r"^( *for .+ in )(.+):  # timer: data$": r"\1timers.fetched(\2):",
        r"^( *)(\S.*)  # timer: (\w+)$": r"\1with timers.timed('\3'): \2",
        r"^( +updates \+= 1)$": r"\1; timers.end_step()",
    }.items():
        text, placed = re.subn(place, timer, text, flags=re.MULTILINE)
        assert placed
    begin = f"import sys\nsys.path.append({str(SCRIPTS)!r})\nimport timers\n"
    timed = folder / f"{name}.py"
    timed.write_text(f"{begin}{text}\ntimers.tell()\n", encoding="utf-8")
    return timed


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
            is_timed = case in TIMED
            script = with_timers(name, folder) if is_timed else SCRIPTS / f"{name}.py"
            answer = Stepscope(folder)(
                *("trace", "--out", folder / "runs", "--json", script, *args),
                env=one_rank() if name == "ddp" else {},
            )
            done[case] = Traced(answer, folder)
        assert done[case].answer.code == 0, done[case].answer.err
        return done[case]

    return traced


@pytest.mark.parametrize("case", EACH)
def test_a_trace_has_the_updates_of_its_script_and_accounts_for_its_time(trace, case: str):
    traced = trace(case)
    run = traced.run
    assert (run.info["kind"], run.status) == ("trace", "completed")
    assert run.summary["steps"] == traced.said("updates")
    assert closes(run)


@pytest.mark.parametrize("case", SAMPLES)
def test_each_sample_that_is_trained_on_is_counted_once(trace, case: str):
    assert trace(case).run.summary["samples"] == SAMPLES[case]


@pytest.mark.parametrize("case", TIMED)
def test_a_phase_lasts_as_long_as_timers_placed_by_hand_say(trace, case: str):
    """In a quarter of the steps or more: a wrong boundary would show in all of them.

    In some, the machine runs another process between the script's clock and ours.
    """
    run, rows = trace(case).run, trace(case).said("timers")
    # Our own work between steps falls into one of the timers, and into none of our phases.
    own_s = run.info["instrument"]["overhead_per_step_s"]
    off_s = {}
    for phase in PHASES:
        by_hand_s = [row[phase] for row in rows]
        pairs = zip(run.steps[f"{phase}_s"], by_hand_s, strict=True)
        off = [abs(traced_s - hand_s) for traced_s, hand_s in pairs if traced_s is not None]
        difference_s = quantiles(off, n=4)[0]
        if difference_s > max(0.05 * median(by_hand_s), 0.1e-3) + own_s:
            off_s[phase] = difference_s
    assert off_s == {}


@pytest.mark.parametrize("case", ["text", "validation_inside", "lightning_trainer"])
def test_an_evaluation_with_a_loader_of_its_own_has_a_row_of_its_own(trace, case: str):
    assert set(trace(case).run.epochs["split"]) == {"train", "test"}


@pytest.mark.parametrize(
    ("case", "samples"), [("plain_cifar", 640), ("accelerate_loop", 160), ("hf_trainer", 128)]
)
def test_an_evaluation_has_one_row_and_each_sample_once(trace, case: str, samples: int):
    tests = [row for row in trace(case).run.epochs.rows() if row["split"] == "test"]
    assert [(row["epoch"], row["samples"]) for row in tests] == [(1, samples), (2, samples)]


@pytest.mark.parametrize("case", ["distillation", "gan", "two_loaders"])
def test_a_model_called_without_gradients_within_a_step_is_no_evaluation(trace, case: str):
    assert set(trace(case).run.epochs["split"]) == {"train"}


def test_a_traced_script_prints_what_it_prints_alone(trace, monkeypatch, capsys):
    script = str(SCRIPTS / "gan.py")
    monkeypatch.setattr("sys.argv", [script])
    runpy.run_path(script, run_name="__main__")
    lines = iter(trace("gan").answer.err.splitlines())
    alone = capsys.readouterr().out.splitlines()
    assert len(alone) == 6
    assert [line for line in alone if line not in lines] == []

"""`stepscope doctor` as a person calls it, and what runs make of a machine's conditions."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from machine_trees import (
    JETSON_XAVIER_NX,
    RASPBERRY_PI,
    Tree,
    add_nvpmodel,
    write_tree,
)
from polling import wait_until
from stepscope_command import ENVIRONMENT, Answer, Stepscope, steps_on_disk
from warm_command import WarmProcess

from stepscope.cli.doctor import doctor
from stepscope.errors import RequestError

GOVERNOR = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
SHORT = ("run", "--samples", 128, "--batch-size", 16, "--epochs", 1, "--max-steps", 2)
LONG = ("run", "--samples", 3200, "--batch-size", 16, "--epochs", 10_000, "--no-evaluate")


class OnATree(Stepscope):
    """Call stepscope on a tree that stands in for a machine."""

    def __init__(self, folder: Path, tree: Tree) -> None:
        super().__init__(folder)
        self.root = write_tree(tree, folder)
        add_nvpmodel(self.root)
        self.env = {
            "STEPSCOPE_SYSTEM_ROOT": str(self.root),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def __call__(self, *args: object) -> Answer:  # type: ignore[override]
        return super().__call__(*args, env=self.env)

    def as_process(self, *args: object, **options: object) -> Answer:
        return super().as_process(*args, env=self.env, **options)

    def governor(self) -> str:
        return (self.root / GOVERNOR).read_text().strip()


@pytest.fixture
def pi(tmp_path: Path) -> OnATree:
    return OnATree(tmp_path, RASPBERRY_PI)


@pytest.fixture
def xavier(tmp_path: Path) -> OnATree:
    return OnATree(tmp_path, JETSON_XAVIER_NX)


def test_doctor_prints_checks_and_exits_with_0_although_it_warns(xavier):
    answer = xavier.succeed("doctor", "--json").json
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["board"]["found"] == "NVIDIA Jetson Xavier NX Developer Kit"
    assert checks["jetpack"]["found"] == "L4T 32.6.1, JetPack 4.6"
    assert checks["power_mode"]["status"] == "warning"
    assert "VDD_IN" in checks["energy"]["found"]
    assert checks["torch"]["status"] in ("ok", "warning")
    assert all(
        {"name", "status", "found", "why", "advice"} == set(each) for each in checks.values()
    )
    assert answer["conditions"]["power_mode"] == "MODE_10W_2CORE"


def test_doctor_on_the_machine_itself_names_everything_or_the_reason(stepscope):
    answer = stepscope.succeed("doctor")
    for name in ("board", "cpus", "memory", "clock", "torch", "energy", "storage"):
        assert name in answer.out
    assert " ok, " in answer.out


def test_a_machine_without_torch_is_examined_all_the_same(stepscope):
    broken = stepscope.folder / "first"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libcudart is missing')\n")
    answer = stepscope.succeed("doctor", "--json", env={"PYTHONPATH": str(broken)}).json
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["torch"]["status"] == "absent"
    assert "libcudart is missing" in checks["torch"]["found"]


def test_apply_sets_what_it_shows_and_restore_puts_it_back(xavier):
    applied = xavier.succeed("doctor", "--apply", "--yes", "--json")
    assert "power_mode: MODE_10W_2CORE -> MODE_15W_6CORE" in applied.err
    assert Path(applied.json["kept"]).exists()
    assert xavier.governor() == "performance"
    restored = xavier("doctor", "--restore", "--json")
    assert (restored.code, restored.json["restored"][-1]) == (0, "power_mode")
    assert xavier.governor() == "schedutil"
    again = xavier("doctor", "--restore")
    assert (again.code, again.err.strip()) == (0, "Nothing to restore.")


def test_apply_asks_and_where_nobody_can_answer_it_wants_to_be_told(pi):
    answer = pi.as_process("doctor", "--apply", stdin=subprocess.DEVNULL)
    assert answer.is_refused(2, "--yes")
    assert pi.governor() == "ondemand"


@pytest.mark.parametrize(("said", "governor"), [("y\n", "performance"), ("\n", "ondemand")])
def test_apply_does_what_a_person_at_a_terminal_says(pi, said, governor):
    ours, theirs = pty.openpty()
    os.write(ours, said.encode())
    answer = pi.as_process("doctor", "--apply", stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert answer.code == 0, answer.err
    assert pi.governor() == governor


@pytest.mark.parametrize(
    "asked",
    [
        {"apply": True, "restore": True},
        {"apply": True, "peaks": True},
        {"restore": True, "peaks": True},
        {"restore": True, "require": "turbo=off"},
        {"restore": True, "yes": True},
        {"yes": True},
    ],
    ids=lambda asked: "+".join(asked),
)
def test_a_flag_that_would_be_left_aside_is_a_wrong_request(asked):
    with pytest.raises(RequestError, match="wanted"):
        doctor(**asked)


def test_a_run_whose_requirement_is_not_met_does_not_start(pi):
    answer = pi(*SHORT, "--require", "governor=performance", "--json")
    assert answer.code == 5
    assert "wanted governor=performance, found ondemand" in answer.json["error"]
    assert not (pi.folder / "runs").exists()


def test_the_trials_of_a_sweep_obey_too(pi):
    sweep = ("sweep", *SHORT[1:], "--over", "workers=0,1", "--repeats", 1)
    assert pi(*sweep, "--require", "governor=performance").code == 5


def test_a_prepared_run_is_recorded_as_prepared_and_put_back(pi):
    answer = pi.succeed(*SHORT, "--prepare", "--require", "governor=performance", "--json")
    conditions = answer.json["environment"]["conditions"]
    assert (conditions["governor"], conditions["clocks"]) == ("performance", "fixed")
    assert conditions["temperature_c"] == {"start": 52.1, "end": 52.1}
    assert conditions["changed"] == {}
    assert "governor: ondemand -> performance" in answer.err
    assert pi.governor() == "ondemand"
    plain = pi(*SHORT, "--json")
    compared = pi("compare", answer.json["path"], plain.json["path"])
    assert "governor performance -> ondemand" in " ".join(compared.out.split())


def test_a_prepared_run_that_is_interrupted_is_put_back(pi):
    running = WarmProcess(
        pi.command(*LONG, "--prepare"),
        cwd=pi.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **pi.env},
    )
    wait_until(lambda: steps_on_disk(pi.folder) > 0)
    assert pi.governor() == "performance"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=90)
    assert running.returncode == 130, err
    assert pi.governor() == "ondemand"
    assert "restored: governor, clocks" in err

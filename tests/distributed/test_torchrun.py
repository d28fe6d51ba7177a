"""Ranks under a user's torchrun: their number, their launcher, and the folder that they share."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stepscope.errors import RequestError
from stepscope.hardware.process import RankInfo
from stepscope.records import run_folder
from stepscope.settings import RunSpec
from stepscope.supervisor import torchrun
from stepscope.supervisor.signals import stop_signals
from stepscope.supervisor.torchrun import FolderRendezvous, spec_under_torchrun

RANK = RankInfo(rank=1, world_size=2, run_id="here")


def rendezvous(out: Path, rank: int, restarts: int = 0) -> FolderRendezvous:
    return FolderRendezvous(RankInfo(rank, 2, "m", restarts), out, survives_restart=True)


def test_torchrun_decides_on_the_number_of_processes() -> None:
    assert spec_under_torchrun(RANK, RunSpec()).processes == 2
    with pytest.raises(RequestError, match="torchrun started 2"):
        spec_under_torchrun(RANK, RunSpec(processes=4))
    with pytest.raises(RequestError, match="--processes"):
        spec_under_torchrun(RANK, RunSpec(memory_limit=2**30))


def test_a_note_of_an_earlier_start_is_found_again_after_a_restart(tmp_path: Path) -> None:
    first = rendezvous(tmp_path, 0)
    made = first.find_run(lambda: run_folder.create(tmp_path, "a", "run", {}).path)
    again = rendezvous(tmp_path, 0, restarts=1)

    def no_other() -> Path:
        raise AssertionError("the run is there")

    assert again.find_run(no_other) == made
    assert rendezvous(tmp_path, 1, 1).find_run(no_other) == made
    again.forget()
    assert not list(tmp_path.glob(".rendezvous*"))


def test_ranks_0_before_and_after_a_restart_may_answer_at_once(tmp_path: Path) -> None:
    def make() -> Path:
        return run_folder.create(tmp_path, "a", "run", {}).path

    for asked in range(300):  # by ranks that were killed: enough for the answers to cross
        (tmp_path / f".rendezvous-m.ask-2-{asked}").touch()
    made = rendezvous(tmp_path, 0).find_run(make)
    for restarts in (1, 2, 3):
        rendezvous(tmp_path, 0, restarts).find_run(make)
    assert rendezvous(tmp_path, 1, 4).find_run(make) == made
    rendezvous(tmp_path, 0).forget()


def test_who_answers_for_a_run_stops_when_it_is_forgotten(tmp_path: Path) -> None:
    def answering() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if "_answer" in each.name]

    before = answering()
    first = FolderRendezvous(RankInfo(0, 2, "m"), tmp_path)
    first.find_run(lambda: run_folder.create(tmp_path, "a", "run", {}).path)
    (mine,) = set(answering()) - set(before)
    first.forget()
    mine.join(timeout=20)
    assert not mine.is_alive()


def test_a_rank_whose_launcher_is_killed_stops_once(capsys: pytest.CaptureFixture[str]) -> None:
    with stop_signals() as signals:
        launcher = torchrun.Launcher(print)
        launcher.check()
        assert signals.stops == 0
        orphan = torchrun.Launcher(print, process=os.getppid() + 1)
        orphan.check()
        orphan.check()
        assert signals.stops == 1
    assert capsys.readouterr().out.count("the launcher has ended") == 1


def test_a_rank_is_told_the_run_of_its_own_start_and_no_earlier_one(tmp_path: Path) -> None:
    def make() -> Path:
        return run_folder.create(tmp_path, "run", "run", {}).path

    # What a start that was killed leaves: its note, an unread answer, a question for nobody.
    old = make()
    for left in (".rendezvous-m", ".rendezvous-m.answer-1-old"):
        (tmp_path / left).write_text(old.name, encoding="utf-8")
    (tmp_path / ".rendezvous-m.ask-1-old").touch()

    told: list[Path] = []
    asking = threading.Thread(target=lambda: told.append(rendezvous(tmp_path, 1).find_run(make)))
    asking.start()
    asking.join(timeout=0.3)
    assert told == [], "rank 0 has not come yet"
    first = rendezvous(tmp_path, 0)
    made = first.find_run(make)
    asking.join(timeout=30)
    assert told == [made]
    assert made != old
    first.forget()
    assert not list(tmp_path.glob(".rendezvous*"))


def test_a_rank_that_cannot_ask_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="--out"):
        FolderRendezvous(RankInfo(1, 2, "m"), tmp_path / "file" / "runs").find_run(lambda: tmp_path)

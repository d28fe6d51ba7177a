"""A search is halved, stopped, resumed and told, with trainings that take no time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quiet_lab import QuietListener
from rich.console import Console
from search_estimate import cost

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.analyze.search_result import designs_of, rejected_of
from stepscope.errors import AnswerIsNo, Interrupted, RequestError
from stepscope.experiments.search import search_run
from stepscope.experiments.search.proposals import SearchBudget
from stepscope.experiments.search.search_run import check_rungs, rung_epochs
from stepscope.experiments.sweep_run import SweepInterrupted
from stepscope.experiments.workload import TrainingWorkload
from stepscope.models.efficient_design import read_design
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.sweep_folder import Sweep, load_sweep
from stepscope.report.html.html_page import document_of, write_page_of
from stepscope.report.terminal.search_table import print_search
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.supervisor.child_supervisor import Outcome

# --- halving --------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 300))
def test_rungs_end_with_the_epochs_asked_for_and_halve_downwards(designs, epochs):
    rungs = rung_epochs(designs, epochs)
    assert rungs[-1] == epochs
    assert rungs == sorted(set(rungs))
    assert len(rungs) <= designs.bit_length()
    assert all(low == max(1, high // 2) for low, high in pairwise(rungs))


@pytest.mark.parametrize("finals", [0, 3, 99])
def test_no_more_are_tested_than_reach_the_last_rung_and_one_at_least(finals):
    with pytest.raises(RequestError, match=f"1 to 2, as many of the 16 trials .* found {finals}"):
        check_rungs([1, 2, 4, 8], 16, finals, None)
    check_rungs([1, 2, 4, 8], 16, 2, None)


def test_rungs_that_end_at_the_same_step_are_refused():
    with pytest.raises(RequestError, match="20 would end the trainings of 1 and of 4 epochs alike"):
        check_rungs([1, 2, 4], 5, 1, 20)
    check_rungs([1], 1, 1, 20)


# --- the whole, with trainings that take no time --------------------------------------------------


class Listener(QuietListener):
    def proposed(self, number, values, figures, fits): ...


@dataclass
class Script:
    """After how many trainings somebody presses Ctrl-C, and which do not come to an end.

    `dies` are first widths, `dies_after` the most epochs that a training bears, and `dies_tested`
    is for those on all samples.
    """

    stop_after: int = 10**9
    dies: Collection[int] = ()
    dies_after: int = 10**9
    dies_tested: bool = False
    accuracy: Callable[[RunSpec], float] | None = None  # in place of one by the widths
    made: int = 0


script = Script()


class Scripted(TrainingWorkload):
    """A training that leaves a finished run folder at once: wider networks are more accurate."""

    def run(self, values, trial_request):
        if script.made >= script.stop_after:
            raise KeyboardInterrupt
        script.made += 1
        spec = self.spec(values)
        asked = spec.model_dump(mode="json")
        made = run_folder.create_at(trial_request.path, spec.run_name, "run", asked, self.choice)
        widths = read_design(spec.model).widths
        accuracy = 1 - 1 / (sum(widths) * spec.epochs)
        if script.accuracy is not None:
            accuracy = script.accuracy(spec)
        columns = schema.COLUMNS[schema.EPOCHS]
        row = dict.fromkeys(columns, "0") | {
            "epoch": str(spec.epochs),
            "split": spec.evaluation_split,
            "accuracy": str(accuracy),
        }
        with (made.path / schema.EPOCHS).open("a") as file:
            file.write(",".join(row[name] for name in columns) + "\n")
        dies = widths[0] in script.dies or spec.epochs > script.dies_after
        dies = dies or (script.dies_tested and spec.evaluation_split == "test")
        status = schema.FAILED if dies else schema.COMPLETED
        summary = summarize(run_reader.load_run(made.path), Measured())
        made.update_info(status=status, summary=summary)
        return Outcome(status, "it died" if status == schema.FAILED else None, 1)


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Search with scripted trainings, stopped after so many; the folder goes on where it was."""
    monkeypatch.setattr(search_run, "TrainingWorkload", Scripted)

    def estimate(model, *layout):
        return cost(model)

    def search(where=None, *, settings=None, written=None, **changes):
        vars(script).update(vars(Script(**(written or {}))))
        if where is not None:
            return search_run.resume(where, estimate, Listener())
        asked = {"samples": 400, "epochs": 4, "out": str(tmp_path / "runs"), "seed": 7}
        asked |= settings or {}
        budget = SearchBudget({"cycles": 400.0})
        request = {"designs": 5, "finals": 1, "spatial": "free", "accelerator": "x"} | changes
        return search_run.start(
            search_run.SearchRequest(asked, budget, **request), estimate, Listener()
        )

    return search


def course(sweep):
    """Return what a search did, without its times and places."""
    trials = [(each.values, each.repeat, each.status) for each in sweep.trials]
    return sweep.info["proposals"], trials


def test_designs_are_halved_and_the_best_is_tested_once(search):
    done = search()
    assert done.info["rungs"] == [1, 2, 4]
    assert [trial.repeat for trial in done.trials] == [1] * 5 + [2] * 3 + [3] * 2 + [4]
    *judged, final = done.trials
    assert {trial.values.get("validation") for trial in judged} == {None}
    assert done.info["spec"]["validation"] == 80
    assert (final.values["validation"], final.values["test_at"]) == (0, "end")
    *others, tested = (run_reader.load_run(done.folder_of(trial)) for trial in done.trials)
    assert tested.spec["augment"] == "none"
    assert tested.info["choice"]["judged_on"] == "validation"
    assert not any("choice" in run.info for run in others)
    best = max(judged, key=lambda each: (each.repeat, each.metrics["validation_accuracy"]))
    assert final.values["model"] == best.values["model"]


@pytest.mark.parametrize("stop_after", range(0, 11, 2))
def test_a_stopped_search_goes_on_to_what_it_would_have_come_to(search, stop_after):
    whole = search()
    with pytest.raises(SweepInterrupted, match="search --resume") as stopped:
        search(written={"stop_after": stop_after})
    write_page_of(stopped.value.folder)
    went_on = search(stopped.value.folder)
    assert script.made == len(whole.trials) - stop_after
    assert course(went_on) == course(whole)
    assert went_on.info["status"] == schema.COMPLETED


def test_a_killed_search_is_resumed_and_a_completed_one_left_as_it_is(search):
    whole = search()
    with pytest.raises(Interrupted):
        search(written={"stop_after": 4})
    killed = load_sweep(whole.path.parent / "latest")
    info = {**killed.info, "status": schema.RUNNING}
    info["trials"][4]["status"] = schema.RUNNING
    (killed.path / schema.SWEEP).write_text(json.dumps(info))
    done = search(killed.path)
    assert course(done) == course(whole)
    assert search(done.path).info == done.info
    assert script.made == 0


def test_a_design_that_cannot_be_trained_is_out_and_without_any_the_answer_is_no(search):
    narrowest = {trial.values["model"] for trial in search().trials}
    dies = {read_design(next(iter(sorted(narrowest)))).widths[0]}
    done = search(written={"dies": dies})
    dead = [row for row in designs_of(done) if row["status"] == schema.FAILED]
    assert dead
    assert all(row["validation_accuracy"] is None and not row["on_front"] for row in dead)
    with pytest.raises(AnswerIsNo, match="no design could be trained: it died"):
        search(written={"dies": range(1000)})


def test_the_front_is_of_those_that_no_other_beats_and_the_report_shows_it(search):
    done = search()
    rows = designs_of(done)
    assert len(rows) == 5
    for row in rows:
        beaten = any(
            other["validation_accuracy"] >= row["validation_accuracy"]
            and other["cycles"] <= row["cycles"]
            and other["energy_mj"] <= row["energy_mj"]
            and other is not row
            for other in rows
        )
        assert row["on_front"] == (not beaten)
    assert len(rejected_of(done)) == sum(not each["fits"] for each in done.info["proposals"])
    document = document_of(done)
    assert [chart.title for chart in document.charts()] == [
        "Accuracy by energy",
        "Accuracy by cycles",
    ]
    assert any("on the test set, used only once" in sentence for sentence in document.verdict)
    for chart in document.charts():
        joined = sorted((mark.x, mark.y) for mark in chart.marks if mark.chosen)
        assert joined == sorted(joined, key=lambda each: each[1])


def test_where_the_chosen_one_cannot_be_tested_the_answer_is_no(search):
    with pytest.raises(search_run.NothingFound, match="design could be tested: it died") as ended:
        search(written={"dies_tested": True})
    recorded = load_sweep(ended.value.folder)
    assert recorded.info["status"] == schema.FAILED
    best = designs_of(recorded)[0]
    assert (best["final_status"], best["final_reason"]) == (schema.FAILED, "it died")
    assert best["test_accuracy"] is None
    assert any("it died" in sentence for sentence in document_of(recorded).verdict)
    told = printed(recorded)
    assert "final training: failed: it died" in told
    assert "Score it" not in told
    with pytest.raises(search_run.NothingFound, match="it died"):
        search(recorded.path)


def test_a_longer_training_that_fails_is_told_beside_what_a_shorter_one_came_to(search):
    with pytest.raises(search_run.NothingFound) as ended:
        search(written={"dies_after": 2})
    row = designs_of(load_sweep(ended.value.folder))[0]
    assert (row["status"], row["reason"]) == (schema.FAILED, "it died")
    assert (row["epochs"], row["rung"]) == (2, 2)
    assert row["validation_accuracy"] is not None


def test_of_equally_accurate_designs_the_thriftiest_is_tested_and_comes_first(search):
    done = search(written={"accuracy": lambda spec: 0.5})
    rows = designs_of(done)
    assert [row["final_run"] is not None for row in rows] == [True] + [False] * 4
    last = [row for row in rows if row["epochs"] == 4]
    assert rows[0]["energy_mj"] == min(row["energy_mj"] for row in rows)
    assert [row["energy_mj"] for row in last] == sorted(row["energy_mj"] for row in last)


@pytest.mark.parametrize("sign", [1, -1])
def test_of_equals_in_everything_the_first_is_tested_and_comes_first(search, sign):
    def accuracy(spec):
        return 0.5 if spec.epochs == 4 else 0.5 + sign * spec.lr / 2  # equal in the last rung

    done = search(written={"accuracy": accuracy}, settings={"model": "efficient:w64"})
    assert [row["final_run"] is not None for row in designs_of(done)] == [True] + [False] * 4


def printed(sweep):
    console = Console(record=True, width=200, file=StringIO())
    print_search(console, sweep)
    return console.export_text()


def test_the_best_is_told_so_that_a_run_trains_as_it_was_tested(search):
    done = search(settings={"data_dir": "my data", "accumulate": 2, "name": "mine"})
    _, _, rest = printed(done).partition("Train it: stepscope run ")
    words = shlex.split(rest.splitlines()[0])
    names = [name.removeprefix("--").replace("-", "_") for name in words[::2]]
    asked = dict(zip(names, words[1::2], strict=True))
    final = run_reader.load_run(done.folder_of(done.trials[-1])).spec
    again = validate(asked).model_dump(mode="json")
    differing = {name for name in final if final[name] != again[name]}
    assert differing == {"name", "out"}


def test_points_are_counted_for_the_same_accelerator_and_only_for_images_that_are_scored(search):
    done = search(spatial="8x16", accelerator="mine")
    [line] = [line for line in printed(done).splitlines() if line.startswith("Score it: ")]
    assert line.endswith("--spatial 8x16 --design mine")
    for other in ({"input": [3, 64, 64]}, {"classes": 100}):
        assert "Score it" not in printed(Sweep(done.path, {**done.info, **other}))


def test_a_search_refuses_before_it_begins(search, tmp_path):
    for settings, said in (
        ({"samples": 60}, "found 48 samples to train on"),
        ({"validation": 400}, "wanted fewer than the 400"),
        ({"max_steps": 3}, "epochs alike"),
    ):
        with pytest.raises(RequestError, match=said):
            search(settings=settings)
    assert not (tmp_path / "runs").exists()


def test_a_search_that_adds_up_batches_draws_those_that_it_can_train(search):
    done = search(settings={"samples": 2000, "accumulate": 8})
    assert {trial.values["batch_size"] for trial in done.trials} == {32}

"""`stepscope report` from outside: a page, files, text; and every way in which it can fail."""

import json
import resource
import shutil
from importlib import metadata

import pytest
from complete_run import EVIL, write_sweep_of_runs, write_whole_run
from stepscope_command import TINY, Stepscope

from stepscope.records.run_folder import create_at
from stepscope.records.run_reader import load_run
from stepscope.report.html.chart_embed import vega_script


@pytest.fixture(scope="module", autouse=True)
def _script_is_kept():
    """Make the script that draws before the tests that are about something else."""
    vega_script()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_whole_run(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def test_a_page_is_written_into_the_run_folder(stepscope, run):
    answer = stepscope.succeed("report", run)
    first, *_, last = answer.out.splitlines()
    assert load_run(run).summary["verdict"]["text"].startswith(first)
    assert last == f"report: {run / 'report.html'}"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert len(page) < 3_000_000


def test_a_page_goes_where_it_is_wanted_and_nowhere_else(stepscope, run, tmp_path):
    assert stepscope("report", run, "--html", "mine.html").code == 0
    assert (tmp_path / "mine.html").exists()
    assert not (run / "report.html").exists()


def test_every_chart_is_a_file_with_a_speaking_name(stepscope, run, tmp_path):
    answer = stepscope.succeed("report", run, "--charts", "drawn", "--format", "svg")
    names = {file.name for file in (tmp_path / "drawn").iterdir()}
    assert {"phases-by-step.svg", "memory-bill.svg", "accuracy-by-time.svg"} <= names
    assert len(names) == 15 == answer.out.count("chart: ")


def test_json_has_findings_and_figures_and_nothing_beside_them(stepscope, run):
    shown = stepscope("report", run, "--json").json
    assert shown["figures"]["phases"]["backward"]["share"] == pytest.approx(0.5)
    assert {"name", "text", "evidence", "command", "weight"} <= shown["findings"][0].keys()
    assert (shown["page"], shown["charts"]) == (None, [])


def test_markdown_is_a_page_of_text(stepscope, run):
    out = stepscope("report", run, "--markdown").out
    assert out.startswith("# lenet\n")
    assert "| backward | 50.0 % |" in out
    assert "## Environment" in out


def test_several_runs_have_a_page_in_the_folder_one_is_in(stepscope, tmp_path):
    for size in (8, 16, 32):
        write_whole_run(tmp_path / "runs" / f"b{size}", spec={"batch_size": size})
    answer = stepscope.succeed("report", *(f"runs/b{size}" for size in (8, 16, 32)))
    assert answer.out.splitlines()[-1] == "report: report.html"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Time of a mini-batch by batch size" in page
    (tmp_path / "runs" / "latest").symlink_to("b32")
    shown = stepscope("report", "runs", "--json").json
    assert [group["name"] for group in shown["figures"]["groups"]] == [
        "batch_size=16",
        "batch_size=32",
        "batch_size=8",
    ]


def test_a_sweep_has_its_graph_and_one_without_a_result_says_what_is_missing(stepscope, tmp_path):
    sweep = write_sweep_of_runs(tmp_path / "sweep", b8=(2.0, 2.1), b32=(1.0, 1.1))
    answer = stepscope.succeed("report", sweep)
    assert answer.out.startswith("Undecided: batch_size=32 looks fastest")
    assert "Throughput by batch size" in (sweep / "report.html").read_text(encoding="utf-8")
    info = json.loads((sweep / "sweep.json").read_text())
    for trial in info["trials"]:
        trial |= {"status": "failed", "reason": EVIL, "metrics": {}}
    (sweep / "sweep.json").write_text(json.dumps(info))
    answer = stepscope.succeed("report", sweep)
    assert "Nothing to compare" in answer.out
    assert EVIL not in (sweep / "report.html").read_text(encoding="utf-8")


def test_a_run_that_goes_on_has_a_page_of_what_is_on_disk(stepscope, run, tmp_path):
    going_on = create_at(tmp_path / "now", "now", "run", {})
    shutil.copy(run / "steps.csv", going_on.path)
    answer = stepscope.succeed("report", going_on.path)
    assert "The run has not ended" in answer.out
    empty = create_at(tmp_path / "empty", "empty", "run", {})
    answer = stepscope("report", empty.path)
    assert (answer.code, "no step is recorded" in answer.out) == (0, True), answer.err


def test_what_cannot_be_reported_is_refused_with_what_to_do(stepscope, run, tmp_path):
    sweep = write_sweep_of_runs(tmp_path / "sweep", b8=(1.0,))
    assert stepscope("report").is_refused(2, "runs/latest")
    assert stepscope("report", "nowhere").is_refused(2, "is not a run folder")
    assert stepscope("report", run, run).is_refused(2, "named more than once")
    assert stepscope("report", run, sweep).is_refused(2, "Name it alone")
    assert stepscope("report", run, "--format", "gif").is_refused(2, "Known: pdf, png, svg")
    assert stepscope("report", run, "--html", run / "run.json").is_refused(2, "ends in .html")
    assert stepscope("report", run, "--html", "no/such/place.html").is_refused(2, "cannot write")
    assert stepscope("report", run, "--charts", run / "run.json").is_refused(2, "cannot make")
    both = stepscope("report", run, "--markdown", "--json")
    assert (both.code, "both use standard output" in both.json["error"]) == (2, True)


def test_a_full_disk_keeps_the_page_that_was_there(stepscope, run):
    (run / "report.html").write_text("the old one")
    small = {
        "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
        "env": {"PYTHONDONTWRITEBYTECODE": "1"},  # a compiled module would be cut off too
    }
    assert stepscope.as_process("report", run, **small).is_refused(5, "Free some space")
    assert (run / "report.html").read_text() == "the old one"
    assert not list(run.glob("*.tmp")) + list(run.glob(".*.tmp"))


# --- at the end of a run


def test_a_run_leaves_a_page_and_prints_its_path(tmp_path_factory):
    stepscope = Stepscope(tmp_path_factory.mktemp("ended"))
    answer = stepscope.succeed("run", *TINY, "--name", EVIL)
    named = answer.out.partition("Page: ")[2].split()[0]
    page = (stepscope.folder / named).read_text(encoding="utf-8")
    assert "Where the time of a step goes" in page
    assert EVIL not in page


def test_a_page_that_cannot_be_made_is_one_line_and_changes_no_exit_code(
    stepscope, tmp_path, monkeypatch
):
    """No vl-convert, and no script of an earlier page: a machine without the extra."""
    found = metadata.version

    def version(name):
        if name == "vl-convert-python":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "version", version)
    bare = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    answer = stepscope.succeed("run", *TINY, "--max-steps", 2, "--json", env=bare)
    assert answer.json["status"] == "completed"
    (line,) = [line for line in answer.err.splitlines() if "no report" in line]
    assert "stepscope[report]" in line
    assert not list((tmp_path / "runs" / "latest").glob("*.html"))

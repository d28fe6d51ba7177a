"""The page: whole, offline, closed to what people named; and the same as Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from asynchronous_device import played
from complete_run import EVIL, write_sweep_of_runs, write_whole_run
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.findings import Finding
from stepscope.errors import MissingExtraError, RequestError
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import load_sweep
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.html import chart_embed
from stepscope.report.html.chart_embed import as_figures, for_page, in_words
from stepscope.report.html.html_page import document_of, to_html, write_page
from stepscope.report.html.markdown import to_markdown
from stepscope.report.html.page_content import Document, FigureList, Section
from stepscope.report.html.run_page import document_of_run
from stepscope.report.html.run_sections import insights_of, tiles_of

SCRIPT = "window.vegaEmbed = null;"


class Seen(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data):
        self.texts.setdefault(self._in, []).append(data)

    def handle_endtag(self, tag):
        self._in = ""

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def document(text: str = "x", charts: tuple[Chart, ...] = ()) -> Document:
    table = FigureList(text, [text, text], [[text, text]], text)
    finding = Finding(text, text, (text,), text, 0.5)
    sections = [Section(text, charts, [text])]
    return Document(text, text, [text], [finding], [table], sections, {}, [table])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "run"
    return load_run(write_whole_run(path, name=EVIL, spec={"data": EVIL}, note=EVIL))


@pytest.fixture(scope="module")
def page(run):
    return to_html(document_of(run), SCRIPT)


@pytest.fixture(scope="module")
def seen(page):
    return Seen(page)


@pytest.mark.parametrize("fixture", ["page", "insight"])
def test_what_people_named_is_text_and_never_markup(fixture, request):
    seen = Seen(request.getfixturevalue(fixture))
    assert not seen.named("img")
    kinds = [each.get("type") for each in seen.named("script")]
    assert kinds == ["application/json", "module", "module"]
    names = [name for _, each in seen.elements for name in each]
    assert not any(name.startswith("on") for name in names)
    assert "style" not in names, "the policy refuses it"


@given(st.text(min_size=1))
def test_no_text_whatever_adds_an_element_to_a_page(text):
    def elements_with(word):
        chart = Chart(word, "bars", word, word, [ChartMark(word, 1.0, word)], word)
        elements = Seen(to_html(document(word, (chart,)), SCRIPT)).elements
        return [tag for tag, _ in elements if tag != "code"]  # of what is quoted in backticks

    assert elements_with(text) == elements_with("x")


def test_the_policy_allows_just_the_scripts_and_styles_that_are_there(seen):
    (policy,) = [each["content"] for each in seen.named("meta") if each.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    allowed = set(re.findall(r"'sha256-(.+?)'", policy))
    run_by_browser = [*seen.texts["style"], *seen.texts["script"][1:]]
    hashes = {
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in run_by_browser
    }
    assert allowed == hashes


def test_a_page_names_no_address_and_shows_what_is_quoted_as_code(page, seen):
    assert seen.texts["title"][0] == f"{EVIL} - stepscope"
    assert "http://" not in page
    assert "https://" not in page
    quoted = document("See `stepscope <b>_x`.")
    assert "<p>See <code>stepscope &lt;b&gt;_x</code>.</p>" in to_html(quoted, SCRIPT)
    assert "**See `stepscope <b>_x`.**" in to_markdown(quoted)


def test_every_chart_has_words_and_a_table_of_its_values(run, seen):
    drawn = [each for each in seen.named("div") if "data-chart" in each]
    charts = document_of(run).charts()
    assert [each["data-chart"] for each in drawn] == [str(at) for at in range(len(charts))]
    assert all(each["role"] == "img" and each["aria-label"] for each in drawn)
    assert len(json.loads(seen.texts["script"][0])) == len(drawn)
    assert seen.texts["summary"].count("Values") == len(drawn)


def test_headings_follow_each_other_without_a_gap(seen):
    levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_verdict_comes_first_and_then_what_it_stands_on(run):
    document = document_of_run(run, [])
    assert document.verdict[0] == run.summary["verdict"]["text"]
    assert document.verdict[1].startswith("40 steps, figures without epoch 1")


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A traced run that says what to change: its file names, code and parts are evil."""
    line, times = f"{EVIL}:3", {"total_s": 0.2, "samples": 9}
    loader = {
        "samples": 1280,
        "sample_s": 0.003,
        "median_sample_s": 0.001,
        "slow_share": 0.25,
        "slow_samples": [{"index": EVIL, "took_s": 0.5}, {"index": 7, "took_s": 0.4}],
        "parts": [
            {"kind": "transform", "name": EVIL, "line": line, "share": 0.7, "samples": 70},
            {"kind": "collate", "name": "collate", "line": None, "share": 0.3, "samples": 30},
        ],
    }
    stacks = [
        {"where": "other", "activity": "logging", "line": line, "code": EVIL, **times},
        {"where": "preparation", "activity": None, "line": line, "code": EVIL, **times},
    ]
    parts = {"imports": 0.5, "training": 1.0, "evaluation": 0.5, "gaps": 2.0}
    spans = [{"part": part, "start_s": 0.0, "total_s": took} for part, took in parts.items()]
    verdict = {
        "text": "Half of every step waits for data. Set num_workers=4: about 1.9 times faster "
        "(1.7 to 2.1), 4 s becomes 2.1 s.",
        "cause": "too_few_workers",
        "expected_speedup": 1.9,
        "interval": [1.7, 2.1],
        "command": f"stepscope workers -- {EVIL}",
    }
    summary = {"verdict": verdict, "loader": loader, "stacks": stacks, "wall_time": spans}
    path = tmp_path_factory.mktemp("slow") / "run"
    return load_run(write_whole_run(path, summary=summary))


FINDINGS = [
    Finding("too_few_workers", "Half waits.", ("5 ms",), "stepscope workers", 0.5, 1.9, "set a=4"),
    Finding("frequent_evaluation", "Evaluates.", (), None, 0.1, 0.1, "evaluate less often"),
    Finding("too_noisy", "Steps are noisy.", ("quartiles",), None, 0.9),
]


@pytest.fixture(scope="module")
def insight(slow):
    return to_html(document_of_run(slow, FINDINGS), SCRIPT)


def test_code_and_file_names_of_a_script_are_shown(insight):
    assert insight.count(escape(EVIL)) > 10


def test_the_change_and_the_gain_stand_out_in_the_verdict(slow):
    document = document_of_run(slow, [replace(FINDINGS[0], change="set num_workers=4")])
    page = to_html(document, SCRIPT)
    stressed = "<strong>Set num_workers=4</strong>: <strong>about 1.9 times faster</strong> (1.7 to"
    assert stressed in page
    assert "**Set num\\_workers=4**: **about 1.9 times faster** (1.7 to" in to_markdown(document)


def test_a_step_is_a_bar_now_and_a_shorter_one_after_the_change(slow):
    now, after = document_of_run(slow, FINDINGS[:1]).bars
    assert [part.colour for part in now.parts] == ["data", "forward", "backward", "optimizer"]
    assert (now.length, now.title) == (1.0, "one step, 10 ms")
    assert after.length < 1
    assert after.title.startswith("expected after the change, ")
    assert "data" not in {part.colour for part in after.parts}, "1.9 s is all of it"


def test_a_change_outside_the_steps_shortens_the_run(slow):
    _, run, after = document_of_run(
        replace_cause(slow, "frequent_evaluation"), [replace(FINDINGS[1], saves_s=0.5)]
    ).bars
    assert run.title == "the run, 4 s"
    assert after.title == "expected after the change, 3.5 s"
    assert "evaluation" not in {part.colour for part in after.parts}


def replace_cause(run, cause):
    run.info["summary"]["verdict"] = {**run.summary["verdict"], "cause": cause}
    return run


def test_findings_are_ranked_by_their_gain_and_those_without_come_last(insight):
    texts = ["1.9x faster (1.7 to ", "Set a=4", "100 ms a run", "Also found", "Steps are noisy"]
    places = [insight.index(text) for text in texts]
    assert places == sorted(places)
    assert "<code>stepscope workers</code><button" in insight


def test_the_whole_wall_clock_is_a_bar_with_the_total_of_each_part(slow):
    (timeline,) = [each for each in document_of_run(slow, []).insights if each.title == "Timeline"]
    (bar,) = timeline.bars
    assert sum(part.share for part in bar.parts) == pytest.approx(1)
    assert [part.name for part in bar.legend][:2] == ["imports 12 %", "training 25 %"]


def test_a_timeline_of_very_many_epochs_stays_small(slow):
    span = {"part": "training", "total_s": 0.5}
    spans = [{**span, "start_s": number * 0.5} for number in range(5000)]
    (timeline,) = insights_of({"wall_time": spans, "wall_s": 2500.0})
    assert [part.name for part in timeline.bars[0].parts] == ["training"]


def test_the_loader_and_other_have_tables_of_parts_samples_and_lines(slow):
    insights = {each.title: each for each in document_of_run(slow, []).insights}
    parts, samples = insights["Loader"].figures
    assert [row[3] for row in parts.rows] == ["70.0 %", "30.0 %"]
    assert samples.rows[1] == ["7", "400 ms"]
    inside, outside = insights["Where `other` goes"].figures
    assert inside.rows[0][2:] == ["logging", "200 ms", "100.0 %"]
    assert outside.rows[0][-1] == "preparation"


def test_a_failed_run_says_so_first(tmp_path):
    run = load_run(write_whole_run(tmp_path / "run"))
    run.info.update(status="failed", reason="ValueError: x.")
    first = document_of_run(run, []).verdict[0]
    assert first == "Failed after 4 s: the figures are those of 40 steps: ValueError: x."


def test_lines_that_were_cut_are_counted_on_the_page(tmp_path):
    path = write_whole_run(tmp_path / "run")
    with (path / "steps.csv").open("a") as file:
        file.write("1,2,3\nnonsense\n")
    shown = document_of_run(load_run(path), []).verdict
    assert "steps.csv: skipped 2 unreadable lines." in shown


def test_the_page_of_a_sweep_names_the_fastest_and_how_sure_that_is(tmp_path):
    sweep = load_sweep(write_sweep_of_runs(tmp_path, b8=(2.0, 2.01), b32=(1.0, 1.01)))
    shown = document_of(sweep)
    assert shown.verdict[0] == (
        "Undecided: batch_size=32 looks fastest, but there are too few rounds to tell. "
        "Repeat each setting at least three times."
    )
    assert len(shown.verdict) == 1
    assert [row[0] for row in shown.figures[0].rows] == ["batch_size=8", "batch_size=32"]


def test_a_chart_on_a_page_has_the_ink_of_the_page_and_no_numbers_that_json_lacks():
    chart = Chart("t", "waterfall", "", "MiB", [ChartMark("a", 1.0), ChartMark("b", float("nan"))])
    drawn = for_page(chart)
    assert "currentColor" in json.dumps(drawn, allow_nan=False)
    assert "#222222" not in json.dumps(drawn)
    assert drawn["data"]["values"] == [{"x": "a", "y": 1.0}]


def test_the_table_of_a_long_chart_is_short_and_keeps_both_ends():
    chart = Chart("t", "bands", "step", "ms", [ChartMark(x, x, low=0, high=9) for x in range(400)])
    table = as_figures(chart)
    assert (len(table.rows), table.note) == (12, "12 of 400")
    assert (table.rows[0][0], table.rows[-1][0]) == ("0", "399")
    assert in_words(chart) == "t. ms by step. ms: 0 to 399."


@given(st.text())
def test_no_text_whatever_breaks_a_table_of_markdown(text):
    lines = to_markdown(document(text)).split("\n")
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 6, "two tables: head, line, row"
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {3}
    assert not any(re.search(r"(?<!\\)<", line) for line in lines if "`" not in line)


# --- the script that draws


def test_the_script_is_made_once_and_then_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    monkeypatch.setattr(
        "vl_convert.javascript_bundle", lambda *a, **k: made.append(1) or "</script>"
    )
    assert chart_embed.vega_script() == chart_embed.vega_script() == "<\\/script>"
    assert made == [1]
    (kept,) = (tmp_path / "stepscope" / "vega").iterdir()
    assert kept.suffix == ".js", "nothing half written is left"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "stepscope").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *a, **k: "made")
    assert chart_embed.vega_script() == "made"


def test_without_vl_convert_a_script_that_was_kept_will_do_and_without_one_the_extra_is_named(
    tmp_path, monkeypatch
):
    def is_missing(_):
        raise chart_embed.metadata.PackageNotFoundError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(chart_embed.metadata, "version", is_missing)
    with pytest.raises(MissingExtraError, match=r"stepscope\[report\]"):
        chart_embed.vega_script()
    folder = tmp_path / "stepscope" / "vega"
    folder.mkdir(parents=True)
    (folder / "1.9.js").write_text("kept")
    assert chart_embed.vega_script() == "kept"


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr("stepscope.report.html.html_page.vega_script", lambda: SCRIPT)
    half_a_letter = write_page(document("\ud800"), tmp_path / "half.html")
    assert "<h1>?</h1>" in half_a_letter.read_text(encoding="utf-8")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(RequestError, match="--html FILE"):
        write_page(document(), tmp_path / "report.html")
    assert {each.name for each in tmp_path.iterdir()} == {"half.html", "report.html"}


def test_a_page_is_made_without_anything_heavy():
    code = (
        "import sys, stepscope.report.html.html_page;"
        "print(sorted({'torch', 'numpy', 'altair', 'vl_convert'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_tiles_of_a_device_do_not_count_what_is_hidden_behind_it(tmp_path):
    """The host waits for batches while the device is busy all along."""

    def step(loop):
        loop.work(12.0)
        loop.lap("data")
        loop.launch(10, 20.0)
        loop.lap("forward")

    run = played(tmp_path, step)
    tiles = {tile.title: tile for tile in tiles_of(run, run.summary)}
    assert tiles["Waiting for data"].share == pytest.approx(0.0, abs=0.01)
    assert tiles["Computation"].share == pytest.approx(1.0, abs=0.01)

"""The page in a real browser: drawn, quiet, offline, closed, and of use to everybody."""

import functools

import pytest
from complete_run import EVIL, write_sweep_of_runs, write_whole_run

from stepscope.analyze.findings import Finding
from stepscope.records.run_folder import RunFolder
from stepscope.records.run_reader import load_run
from stepscope.records.sweep_folder import load_sweep
from stepscope.report.html.html_page import document_of, write_page
from stepscope.report.html.run_page import document_of_run


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a run, of several runs and of a sweep, all with an evil name in them."""
    folder = tmp_path_factory.mktemp("pages")
    evil = {"name": EVIL, "spec": {"data": EVIL, "name": EVIL}, "note": EVIL}
    runs = [load_run(write_whole_run(folder / "run", **evil))]
    runs += [load_run(write_whole_run(folder / name, spec={"name": name})) for name in ("b", "c")]
    sweep = load_sweep(write_sweep_of_runs(folder / "sweep", b8=(2.0, 2.1), b32=(1.0, 1.1)))
    recorded = {"run": runs[0], "runs": runs, "sweep": sweep}
    return {
        name: write_page(document_of(each), folder / f"{name}.html")
        for name, each in recorded.items()
    }


@pytest.fixture(scope="module")
def look(visit, pages):
    """Open a page; what it asks for and complains of is in `page.heard`."""
    return lambda name, **options: visit(pages[name].as_uri(), **options)


@pytest.fixture(scope="module")
def seen(look):
    """Give a page that tests share which leave it as it is."""
    return functools.cache(look)


@pytest.mark.parametrize("name", ["run", "runs", "sweep"])
def test_every_chart_is_drawn_and_nothing_is_asked_for_or_complained_of(seen, pages, name):
    page = seen(name)
    charts = page.locator("[data-chart]")
    assert charts.count() >= 8
    assert page.locator("[data-chart] svg").count() == charts.count()
    drawn = page.locator("[data-chart] svg").evaluate_all(
        "all => all.map(svg => svg.querySelectorAll('.mark-rect path, .mark-line path, "
        ".mark-area path, .mark-symbol path').length)"
    )
    assert all(drawn), drawn
    assert page.heard == [pages[name].as_uri()], "the page itself, and nothing else"


def test_steps_that_were_throttled_are_shaded_and_the_shade_is_named(visit, tmp_path):
    run = write_whole_run(tmp_path / "run")
    RunFolder(run).add_event("throttling_watched", 0.0, what=["clock"])
    RunFolder(run).add_event("throttling", 0.1, what="clock")
    page = visit(write_page(document_of(load_run(run)), tmp_path / "page.html").as_uri())
    chart = page.locator("figure", has_text="Time of every step").locator("svg")
    assert chart.locator(".mark-rect.role-mark path").count() == 1
    assert "throttled" in chart.locator(".role-legend text").all_text_contents()


def test_what_people_named_is_shown_as_text(seen):
    page = seen("run")
    assert page.locator("h1").inner_text() == EVIL
    assert page.title() == f"{EVIL} - stepscope"
    assert page.locator("img").count() == 0
    in_charts = page.locator("[data-chart] svg text").all_text_contents()
    assert any(text.startswith("<script>document.title") for text in in_charts), in_charts


def test_a_script_that_slipped_in_would_not_run(look, run_no_script):
    run_no_script(look("run"))


@pytest.mark.parametrize("name", ["run", "runs", "sweep"])
def test_a_phone_does_not_scroll_sideways_and_charts_follow_the_width(seen, name):
    page = seen(name)
    wide = page.viewport_size
    chart = page.locator("[data-chart]").last  # they are drawn in order
    before = chart.locator("svg").get_attribute("width")
    page.set_viewport_size({"width": 390, "height": 844})
    chart.locator(f'svg:not([width="{before}"])').wait_for()
    assert float(chart.locator("svg").get_attribute("width")) < 390 < float(before)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(wide)
    chart.locator(f'svg[width="{before}"]').wait_for()


def test_the_dark_is_dark_and_the_ink_in_charts_follows(seen):
    light, dark = (
        page.locator("[data-chart] svg text").first.evaluate(
            "text => [getComputedStyle(text).fill, getComputedStyle(document.body).backgroundColor]"
        )
        for page in (seen("run"), seen("sweep", color_scheme="dark"))
    )
    assert light == ["rgb(22, 25, 29)", "rgb(246, 247, 249)"]
    assert dark == ["rgb(233, 237, 242)", "rgb(16, 19, 23)"]


def test_the_keyboard_alone_gets_through(look):
    page = look("run")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
        if reached[-1] == "Values":
            break
    page.keyboard.press("Enter")
    assert page.locator("figure details[open] table").first.is_visible(), reached


@pytest.mark.parametrize(("name", "how"), [("run", {}), ("sweep", {"color_scheme": "dark"})])
def test_axe_finds_nothing_to_complain_of(seen, complaints, name, how):
    assert complaints(seen(name, **how)) == []


def test_a_command_is_copied_with_one_click(visit, tmp_path):
    line = "stepscope workers -- 'my script.py'"
    finding = Finding("x", "It waits.", (), line, 0.5, 1.0, "set num_workers=4")
    document = document_of_run(load_run(write_whole_run(tmp_path / "run")), [finding])
    url = write_page(document, tmp_path / "page.html").as_uri()
    page = visit(url, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#findings .copy").click()
    page.locator("#findings .copy", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == line


def test_the_contents_show_where_the_reader_is(look):
    page = look("run")
    assert page.locator(".contents [aria-current]").inner_text() == "Overview"
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    # A selector, not a function: the page's content policy forbids to evaluate strings.
    page.wait_for_selector(".contents [aria-current]:not([href='#main'])")

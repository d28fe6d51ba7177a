"""The live page in a real browser: it grows by itself, keeps what somebody chose, and is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from complete_run import add_steps, unclosed, write_whole_run
from serve_client import Served, start_serving

Look = Callable[..., Any]
CHARTS = "[data-chart] svg"
LOOKS_AGAIN_MS = 2000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live") / "runs"
    for name in ("one", "two"):
        write_whole_run(folder / name, name, spec={"name": name})
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Served]:
    with start_serving() as start:
        yield start(runs)


@pytest.fixture
def look(visit: Look, served: Served) -> Look:
    """Open a page; what it complains of, and what it asks of others, is in `page.heard`."""

    def open_page(path: str, url: str = served.url, **options: Any) -> Any:
        return visit(f"{url.rstrip('/')}{path}", own=url, **options)

    return open_page


def test_a_run_grows_on_the_screen_and_what_was_opened_stays_open(look, runs):
    run = unclosed(write_whole_run(runs / "growing", "growing"))
    page = look("/runs/growing")
    assert page.locator("#status").inner_text() == "live"
    page.locator("figure summary").first.click()
    course = page.get_by_role("figure").filter(has_text="Time of every step").locator("svg")
    before = course.inner_html()
    page.evaluate("document.body.dataset.reloaded = 'no'")
    add_steps(run)
    page.clock.fast_forward(LOOKS_AGAIN_MS)
    page.get_by_text("60 steps").first.wait_for()
    page.wait_for_function(
        "before => [...document.querySelectorAll('figure')].some(figure => figure.textContent"
        ".includes('Time of every step') && figure.querySelector('svg').innerHTML !== before)",
        arg=before,
    )
    assert page.locator(CHARTS).count() == page.locator("[data-chart]").count()
    assert page.locator("figure details").first.get_attribute("open") is not None
    assert page.evaluate("document.body.dataset.reloaded") == "no"
    assert page.heard == []


def test_a_new_run_appears_and_the_choice_stays_with_its_run(look, runs):
    unclosed(write_whole_run(runs / "kept-live", "kept-live"))  # a list with it is looked at often
    page = look("/")
    page.get_by_label("Compare two").check()
    write_whole_run(runs / "brand-new", "brand-new")
    page.clock.fast_forward(LOOKS_AGAIN_MS)
    page.get_by_role("link", name="brand-new").wait_for()
    assert page.get_by_label("Compare two").is_checked()
    assert page.locator("input:checked").count() == 1
    assert page.heard == []


def test_the_keyboard_alone_gets_from_the_list_to_a_comparison_and_back(look):
    page = look("/")
    to_choose = {"Compare one", "Compare two"}
    for _ in range(60):
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.getAttribute('aria-label')")
        if label in to_choose:
            page.keyboard.press("Space")
            to_choose.remove(label)
        if not to_choose:
            break
    page.keyboard.press("Enter")  # in a form it is its button
    page.wait_for_url("**/compare?*")
    page.wait_for_selector("html[data-drawn=all]")
    assert page.locator("h1").inner_text() == "2 runs"
    assert page.locator(CHARTS).count() == page.locator("[data-chart]").count() > 5
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url.endswith("/"))
    assert page.heard == []


def test_a_script_that_slipped_in_would_not_run(look, run_no_script):
    run_no_script(look("/"))


@pytest.mark.parametrize("path", ["/", "/compare?run=one&run=two"])
def test_a_phone_does_not_scroll_sideways(look, path):
    page = look(path, viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_server_that_is_gone_is_said_so(look, tmp_path):
    unclosed(write_whole_run(tmp_path / "run", "run"))
    with start_serving() as start:
        served = start(tmp_path)
        page = look("/runs/run", url=served.url)
        served.process.send_signal(signal.SIGINT)
        served.process.wait(timeout=30)
        page.clock.fast_forward(LOOKS_AGAIN_MS)
        page.get_by_text("is stepscope serve still running?").wait_for()
    assert page.locator(CHARTS).count() > 5


@pytest.mark.parametrize("path", ["/", "/runs/one", "/compare?run=one&run=two"])
def test_axe_finds_nothing_to_complain_of(look, complaints, path):
    assert complaints(look(path)) == []

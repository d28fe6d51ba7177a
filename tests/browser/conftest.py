"""A real browser for the tests: a Chromium of the machine's own (`apt-get install chromium`).

Without one these tests are left out, and say so; where CI is set, that is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        said = "NO CHROMIUM: pages were NOT looked at. Get it with: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page and wait until it is drawn.

    What it complains of and asks for is in its `heard`, but for what begins with `own`. Its clock
    may be put forward.
    """
    contexts = []

    def open_page(url: str, own: str | None = None, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.clock.install()
        page.heard = []
        page.on("console", lambda message: page.heard.append(message.text))
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on("dialog", lambda dialog: page.heard.append(dialog.message))

        def asked(request: Any) -> None:
            if own is None or not request.url.startswith(own):
                page.heard.append(request.url)

        page.on("request", asked)
        page.goto(url)
        page.wait_for_selector("html[data-drawn=all]")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def run_no_script() -> Callable[[Any], None]:
    """Check that a script that is added to a page is refused."""

    def check(page: Any) -> None:
        before = page.title()
        page.evaluate(
            "() => { const script = document.createElement('script');"
            " script.textContent = \"document.title = 'owned'\"; document.body.append(script); }"
        )
        assert page.title() == before
        assert any("Content Security Policy" in line for line in page.heard)

    return check


@pytest.fixture(scope="session")
def complaints() -> Callable[[Any], list[Any]]:
    """Ask axe-core's rules what they have to say of a page."""
    rules = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")

    def ask(page: Any) -> list[Any]:
        opened = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
        page.evaluate(opened)
        page.evaluate(rules)
        # What is in a chart is hidden from everybody whom these rules are about.
        found = page.evaluate("axe.run({ exclude: [['svg']] }, { resultTypes: ['violations'] })")[
            "violations"
        ]
        return [(each["id"], [node["html"] for node in each["nodes"][:2]]) for each in found]

    return ask

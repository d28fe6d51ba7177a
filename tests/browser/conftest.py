"""A real browser for the tests: a Chromium of the machine's own (`apt-get install chromium`).

Without one these tests are left out, and say so; where CI is set, that is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
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

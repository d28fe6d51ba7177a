"""Make the pictures of docs/pictures: real runs, their pages, photographed in Chromium.

The run is a trace of the quickstart's slow script, as in `tools/record_terminal.py`.

    .venv/bin/python tools/screenshots.py

Wants Chromium (Debian: apt-get install chromium) and the extras `train`, `report` and `dev`. It
takes some minutes; other programs on the machine show in the pictures.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from record_terminal import PAGE, script_of

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH, HEIGHT = 1240, 1500
TRAINING = ("--samples", "12000", "--epochs", "3", "--seed", "1")


def stepscope(folder: Path, *words: str) -> None:
    """Run a command of ours in a folder of its own."""
    print("stepscope", *words, flush=True)
    subprocess.run([sys.executable, "-m", "stepscope", *words], cwd=folder, check=True)


def make_pages(folder: Path) -> dict[str, Path]:
    """Make the runs, and a page of a traced script, of three runs and of a sweep."""
    (folder / "train.py").write_text(script_of(PAGE), encoding="utf-8")
    stepscope(folder, "trace", "--out", "traces", "train.py")
    stepscope(folder, "report", "traces/latest", "--html", "run.html")
    for batch in ("32", "128", "512"):
        named = ["--batch-size", batch, "--layers", "10", "--name", f"lenet, batch {batch}"]
        stepscope(folder, "run", *TRAINING, *named, "--out", f"runs-{batch}")
    runs = [f"runs-{batch}/latest" for batch in ("32", "128", "512")]
    stepscope(folder, "report", *runs, "--html", "runs.html")
    delayed = ("--samples", "4000", "--epochs", "2", "--pipeline-delay-ms", "0.3")
    rounds = ("--over", "workers=0,1,2,4", "--repeats", "6")
    stepscope(folder, "sweep", *rounds, *delayed, "--out", "sweeps")
    stepscope(folder, "report", "sweeps/latest", "--html", "sweep.html")
    return {name: folder / f"{name}.html" for name in ("run", "runs", "sweep")}


def photograph(browser: Browser, page: Path, picture: Path, scheme: str = "light") -> None:
    """Save the upper part of a page."""
    tab = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-drawn=all]")
    tab.screenshot(path=picture)
    tab.close()
    Image.open(picture).convert("RGB").save(picture, optimize=True)


def main() -> int:
    """Make all of them."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("wanted Chromium, found none. Debian has it: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        pages = make_pages(Path(temporary))
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-background-networking"]
        )
        for name, page in pages.items():
            photograph(browser, page, PICTURES / f"{name}.png")
        photograph(browser, pages["run"], PICTURES / "run-dark.png", "dark")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long the live page takes to answer, of runs of 1,000 to 1,000,000 steps that go on.

Answers are timed while the run is read for the first time, and while steps are added to it. Beside
the slowest: how long it takes until the run is shown, and until what was added is.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from urllib.request import urlopen

from stepscope.hardware.host import cpu_model
from stepscope.records import schema
from stepscope.records.run_folder import create

STEPS = (1_000, 10_000, 100_000, 1_000_000)
ADDED = 1_000
BETWEEN_ANSWERS_S = 0.1
MOST_S = 0.5


@dataclass(frozen=True)
class Watched:
    """What somebody met who looked at a run until it was shown, then until it had grown."""

    slowest_s: float
    shown_s: float
    grown_s: float


def main() -> int:
    print(f"on {cpu_model()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, "-m", "stepscope", "serve", folder, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            for steps in STEPS:
                found = watch(url, Path(folder), steps)
                missed |= found.slowest_s > MOST_S
                print(
                    f"{steps:>9,} steps: slowest answer {found.slowest_s:.3f} s, "
                    f"shown after {found.shown_s:.1f} s, grown after {found.grown_s:.1f} s"
                )
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
    print(f"wanted: {MOST_S} s at most: {'missed' if missed else 'met'}")
    return int(missed)


def watch(url: str, folder: Path, steps: int) -> Watched:
    run = create(folder, f"{steps}-steps", "run", {"model": "none", "data": "none"}).path
    add_steps(run, 0, steps)
    page = f"{url}runs/{run.name}"
    shown_s, slowest = until(page, steps)
    add_steps(run, steps, ADDED)
    grown_s, slowest_later = until(page, steps + ADDED)
    return Watched(max(slowest, slowest_later), shown_s, grown_s)


def until(page: str, steps: int) -> tuple[float, float]:
    """Ask until so many steps are shown; return how long that took, and the slowest answer."""
    began, slowest = perf_counter(), 0.0
    while True:
        asked = perf_counter()
        with urlopen(page) as answer:
            text = answer.read().decode()
        slowest = max(slowest, perf_counter() - asked)
        if re.search(rf"\b{steps:,} steps", text):
            return perf_counter() - began, slowest
        sleep(BETWEEN_ANSWERS_S)


def add_steps(run: Path, first: int, count: int) -> None:
    """Append rows as a training writes them, with every figure known."""
    chance = random.Random(first)
    with (run / schema.STEPS).open("a", encoding="utf-8") as file:
        for number in range(first, first + count):
            parts = [chance.uniform(1e-4, 5e-3) for _ in schema.PHASES]
            known = {
                "epoch": 1,
                "step": number + 1,
                "start_s": f"{number * 0.02:.6f}",
                "samples": 32,
                **{f"{name}_s": f"{s:.6f}" for name, s in zip(schema.PHASES, parts, strict=True)},
                "step_s": f"{sum(parts):.6f}",
                "load_s": "0.001234",
                "loss": f"{chance.uniform(0.1, 2):.6f}",
                "detail": schema.FULL,
            }
            file.write(",".join(str(known.get(name, "")) for name in schema.STEP_COLUMNS) + "\n")


if __name__ == "__main__":
    sys.exit(main())

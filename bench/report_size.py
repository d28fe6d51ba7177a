"""What the page of a run costs, from a thousand steps to a million: time, memory, size.

Each report is a process of its own, as a person calls it. The script that draws charts is made
beforehand: it is made once in the life of an installation.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from stepscope.records import schema
from stepscope.records.run_folder import create_at
from stepscope.report.html.chart_embed import vega_script
from stepscope.report.html.html_page import FILE
from stepscope.units import format_bytes, format_duration

STEPS = (10**3, 10**4, 10**5, 10**6)
MOST_S, MOST_BYTES, MOST_MEMORY_BYTES = 10.0, 3 * 10**6, 10**9
SHARES = {"data": 0.1, "transfer": 0.0, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}


@dataclass(frozen=True)
class Cost:
    """What one report took; `cpu_s` tells how much of the time others had the machine."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    page_bytes: int


def main() -> int:
    vega_script()
    print(f"{'steps':>9} {'time':>9} {'on a CPU':>9} {'memory':>11} {'page':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for steps in STEPS:
            cost = report_of(write_run(Path(folder) / str(steps), steps))
            print(
                f"{steps:>9,} {format_duration(cost.wall_s):>9} {format_duration(cost.cpu_s):>9} "
                f"{format_bytes(cost.memory_bytes):>11} {format_bytes(cost.page_bytes):>11}"
            )
    met = (
        cost.wall_s <= MOST_S
        and cost.page_bytes <= MOST_BYTES
        and cost.memory_bytes <= MOST_MEMORY_BYTES
    )
    wanted = f"{MOST_S:.0f} s, {format_bytes(MOST_MEMORY_BYTES)}, {format_bytes(MOST_BYTES)}"
    print(f"wanted of the last at most {wanted}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


def write_run(path: Path, steps: int) -> Path:
    """Write a run of so many steps whose times jump about as those of a real one do."""
    create_at(path, f"{steps} steps", "run", {"model": "lenet", "data": "shapes"})
    chance = random.Random(steps)
    start_s = 0.0
    with (path / schema.STEPS).open("a", encoding="utf-8") as file:
        for number in range(steps):
            step_s = chance.lognormvariate(-5.3, 0.2)
            row = {
                "epoch": 1 + number // 10_000,
                "step": 1 + number % 10_000,
                "start_s": f"{start_s:.9f}",
                "samples": 8,
                **{f"{phase}_s": f"{share * step_s:.9f}" for phase, share in SHARES.items()},
                "other_s": "0.000000000",
                "step_s": f"{step_s:.9f}",
                "loss": f"{2.3 / (1 + number / steps):.9g}",
                "detail": schema.FULL,
            }
            file.write(",".join(str(row.get(name, "")) for name in schema.STEP_COLUMNS) + "\n")
            start_s += step_s
    return path


def report_of(path: Path) -> Cost:
    """Make the report in a process of its own, and weigh that."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "report", str(path)], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began_s
    if status:
        raise SystemExit(f"the report of {path} failed")
    page_bytes = (path / FILE).stat().st_size
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, page_bytes)


if __name__ == "__main__":
    sys.exit(main())

"""How long stepscope takes before the first step and after the last, against a bare script.

The bare script trains LeNet on the built-in images, read from the user's cache. It says when its
first and its last step ended. `stepscope run` and `stepscope trace` make the same steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _alternate import machine

from stepscope.records.run_reader import load_run
from stepscope.stats.intervals import median

ROUNDS = 7
STEPS = 5
STEPSCOPE = str(Path(sys.executable).with_name("stepscope"))

BARE = """
import json, sys, time
from pathlib import Path
import numpy as np
import torch
from torch import nn

images, labels = (np.load(Path(sys.argv[1]) / f"{name}.npy") for name in ("images", "labels"))
net = nn.Sequential(
    nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
ends = []
for step in range(int(sys.argv[2])):
    part = slice(step * 64, step * 64 + 64)
    batch = torch.from_numpy(images[part]).float().div(255), torch.from_numpy(labels[part])
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    ends.append(time.time())
print(json.dumps([ends[0], ends[-1]]))
"""


@dataclass(frozen=True)
class Times:
    """Seconds from the start to the end of the first step, and from the last one to the prompt."""

    first_s: float
    after_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.write()
        seen = _alternate(
            {"bare": bench.bare, "run": bench.run, "trace": bench.trace}, rounds, warm_up=1
        )
        trial_s = bench.trial_s(rounds)
    help_s = median([_timed([STEPSCOPE, "--help"]) for _ in range(rounds + 1)][1:])
    met = [
        _show("run, start to first step", "first_s", seen, "run", most_ratio=1.5),
        _show("run, last step to prompt", "after_s", seen, "run", most_more_s=1.0),
        _show("trace, start to first step", "first_s", seen, "trace", most_more_s=1.0),
        _show("trace, last step to prompt", "after_s", seen, "trace", most_more_s=1.0),
        _tell(f"a trial of {STEPS} steps in a sweep: {trial_s:.2f} s", "1 s at most", trial_s <= 1),
        _tell(f"stepscope --help: {help_s:.3f} s", "0.25 s at most", help_s <= 0.25),
    ]
    print(f"  {rounds} rounds, on {machine()}")
    return 0 if all(met) else 1


@dataclass(frozen=True)
class Bench:
    """What is timed, in a folder of its own."""

    folder: Path

    def write(self) -> None:
        """Write the bare script and its data, and have stepscope draw its own."""
        import numpy as np

        from stepscope.data.datasets import shapes

        drawn = shapes.load("train", self.folder)
        np.save(self.folder / "images.npy", drawn.images)
        np.save(self.folder / "labels.npy", drawn.labels)
        (self.folder / "bare.py").write_text(BARE, encoding="utf-8")

    def bare(self) -> Times:
        """Run the script as it is."""
        return self._script([sys.executable])

    def trace(self) -> Times:
        """Run the script under `stepscope trace`."""
        return self._script([STEPSCOPE, "trace"])

    def _script(self, launcher: list[str]) -> Times:
        began = time.time()
        said = self._call([*launcher, "bare.py", ".", str(STEPS)])
        first, last = json.loads(said.splitlines()[0])
        return Times(first - began, time.time() - last)

    def run(self) -> Times:
        """Make the same steps with `stepscope run`."""
        began = time.time()
        self._call([STEPSCOPE, "run", "--max-steps", str(STEPS)])
        ended = time.time()
        run = load_run(self.folder / "runs" / "latest")
        origin = run.info["instrument"]["origin_unix_s"]
        ends = [
            origin + start + took
            for start, took in zip(run.steps["start_s"], run.steps["step_s"], strict=True)
        ]
        return Times(ends[0] - began, ended - ends[-1])

    def trial_s(self, rounds: int) -> float:
        """Return what each further trial of a sweep takes."""
        few, many = 2, 2 + 2 * rounds
        short = ["--max-steps", str(STEPS), "--epochs", "1", "--no-evaluate"]
        took = {
            repeats: _timed(
                [STEPSCOPE, "sweep", "--over", "seed=0", "--repeats", str(repeats), *short],
                self.folder,
            )
            for repeats in (few, many)
        }
        return (took[many] - took[few]) / (many - few)

    def _call(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout


def _alternate(
    works: dict[str, Callable[[], Times]], rounds: int, warm_up: int
) -> dict[str, list[Times]]:
    seen: dict[str, list[Times]] = {name: [] for name in works}
    for number in range(rounds + warm_up):
        for name in sorted(works, reverse=bool(number % 2)):
            times = works[name]()
            if number >= warm_up:
                seen[name].append(times)
    return seen


def _show(
    what: str,
    part: str,
    seen: dict[str, list[Times]],
    name: str,
    *,
    most_ratio: float | None = None,
    most_more_s: float | None = None,
) -> bool:
    """Compare one part of a run with the same of the bare script, by medians of the rounds."""
    ours, bare = ([getattr(times, part) for times in seen[which]] for which in (name, "bare"))
    ratio = median([a / b for a, b in zip(ours, bare, strict=True)])
    more_s = median([a - b for a, b in zip(ours, bare, strict=True)])
    measured = f"{what}: {ratio:.2f} times the bare script ({median(bare):.2f} s), {more_s:+.2f} s"
    if most_ratio is not None:
        return _tell(measured, f"{most_ratio} times at most", ratio <= most_ratio)
    assert most_more_s is not None
    return _tell(measured, f"{most_more_s:g} s more at most", more_s <= most_more_s)


def _tell(measured: str, wanted: str, met: bool) -> bool:
    print(f"{measured}; wanted {wanted}: {'met' if met else 'MISSED'}")
    return met


def _timed(command: list[str], folder: Path | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())

"""Are predictions of another number of workers right? Predicted against measured step times.

Every training is traced with 0, 1, 2 and 4 workers, twice, in an order that is reversed the second
time, and a third time where the two differ by more than 8 %. Measured is the median of the runs
with a number; the run next to the median predicts the other numbers.

Run all, or some: `bench/what_if.py --only io_heavy mixed`. `--save FILE` keeps the paths of the run
folders, so that parts can be summed up later: `bench/what_if.py --read FILE`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.step_model import step_model
from stepscope.analyze.what_if import MODEL_ERROR, sampling_error
from stepscope.records.run_reader import load_run
from stepscope.stats.intervals import median, quantile

WORKERS = (0, 1, 2, 4)
AGREES = 0.08
WANTED_MEDIAN, WANTED_WORST = 0.08, 0.25

SCRIPT = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
{setup}

def work(times):
    total = 0
    for number in range(times):
        total += number * number
    return total

class Images(Dataset):
    def __init__(self):
        self.images = torch.rand(256, 3, 32, 32)

    def __len__(self):
        return {steps} * {batch}

    def __getitem__(self, index):
        image = self.images[index % 256]
        {item}
        return image, index % 10

def main():
    workers = int(sys.argv[1])
    loader = DataLoader(
        Images(), batch_size={batch}, num_workers=workers, persistent_workers=workers > 0
    )
    model = nn.Sequential(
        nn.Conv2d(3, {width}, 3, padding=1), nn.ReLU(),
        nn.Conv2d({width}, {width}, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d({width}, {width}, 3, padding=1, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear({width} * 16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Training:
    """What varies: the loader's work for a sample, the network, the steps of an epoch."""

    item: str
    width: int = 24
    batch: int = 32
    steps: int = 60
    setup: str = ""

    def script(self) -> str:
        """Return the training as a script; its argument is the number of workers."""
        text = SCRIPT
        for name in ("item", "width", "batch", "steps", "setup"):
            text = text.replace("{" + name + "}", str(getattr(self, name)))
        return text


TRAININGS = {
    "cpu_light": Training("work(4_000)"),
    "cpu_even": Training("work(12_000)"),
    "cpu_heavy": Training("work(40_000)", steps=40),
    "io": Training("time.sleep(0.001)"),
    "io_heavy": Training("time.sleep(0.003)", steps=40),
    "mixed": Training("work(8_000); time.sleep(0.0008)"),
    "mixed_heavy": Training("work(20_000); time.sleep(0.002)", steps=40),
    "compute": Training("pass", width=64, steps=40),
    "compute_and_cpu": Training("work(10_000)", width=64, steps=40),
    "one_thread": Training("work(12_000)", setup="torch.set_num_threads(1)"),
    "tensors": Training("image = (image.roll(1, -1) + image.flip(-1)).softmax(0)"),
    "slow_samples": Training("time.sleep(0.1 if index % 97 == 7 else 0)"),
    "small": Training("work(4_000)", width=8, batch=8, steps=300),
}


def main() -> int:
    """Trace, predict, compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    parser.add_argument("--save", type=Path, help="append the paths of the runs to this file")
    parser.add_argument("--read", type=Path, nargs="+", help="compare the runs in these files")
    asked = parser.parse_args()
    if asked.read:
        lines = [line for file in asked.read for line in file.read_text().splitlines()]
        return compare([json.loads(line) for line in lines])
    runs = []
    folder = Path(tempfile.mkdtemp(prefix="what-if-"))
    for name in asked.only:
        runs += traced(name, folder)
        if asked.save:
            with asked.save.open("a") as file:
                file.writelines(json.dumps(run) + "\n" for run in runs if run[0] == name)
    return compare(runs)


def traced(name: str, folder: Path) -> list[tuple[str, int, str]]:
    """Return the runs of a training: its name, the number of workers, the run folder."""
    script = folder / f"{name}.py"
    script.write_text(TRAININGS[name].script())
    found: dict[int, list[str]] = {workers: [] for workers in WORKERS}
    for order in (WORKERS, tuple(reversed(WORKERS)), WORKERS):
        for workers in order:
            if len(found[workers]) < 2 or differ(found[workers]) > AGREES:
                command = [sys.executable, "-m", "stepscope", "trace", "--json"]
                command += ["--out", str(folder / "runs"), str(script), str(workers)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[workers].append(json.loads(done.stdout)["path"])
    return [(name, workers, path) for workers, paths in found.items() for path in paths]


def step_s(path: str) -> float:
    """Return the mean step of a run."""
    return RunView(load_run(path)).mean_step_s


def differ(paths: list[str]) -> float:
    """Return how far equal runs are apart."""
    taken_s = [step_s(path) for path in paths]
    return max(taken_s) / min(taken_s) - 1


def compare(runs: list[tuple[str, int, str]]) -> int:
    """Print predicted and measured step times; return 1 if what is wanted was missed."""
    taken: dict[tuple[str, int], list[str]] = {}
    for name, workers, path in runs:
        taken.setdefault((name, workers), []).append(path)
    measured_s = {key: median([step_s(path) for path in paths]) for key, paths in taken.items()}
    errors, covered = [], []
    print(f"{'training':16} workers  predicted   measured   error")
    for (name, workers), paths in taken.items():
        middle_s = measured_s[name, workers]
        middle = min(paths, key=lambda path: abs(step_s(path) - middle_s))
        for path in paths:
            view = RunView(load_run(path))
            model = step_model(view)
            if model is None:
                raise SystemExit(f"{path}: no model of its step")
            doubt = math.hypot(MODEL_ERROR, sampling_error(view))
            for other in (each for each in WORKERS if each != workers):
                predicted_s = model.step_with(other)
                ratio = predicted_s / measured_s[name, other]
                covered.append(abs(ratio - 1) <= doubt)
                if path != middle:
                    continue
                errors.append(abs(ratio - 1))
                print(
                    f"{name:16} {workers} to {other}  {predicted_s * 1e3:6.1f} ms  "
                    f"{measured_s[name, other] * 1e3:6.1f} ms  {ratio - 1:+6.1%}"
                )
    errors.sort()
    repeats = [differ(paths) for paths in taken.values() if len(paths) > 1]
    print(f"{len(errors)} cases: off by {median(errors):.1%} in the median, ", end="")
    print(f"{quantile(errors, 0.9):.1%} at the ninth decile, {errors[-1]:.1%} at worst")
    print(f"equal runs differ by {median(repeats):.1%} in the median, {max(repeats):.1%} at worst")
    print(f"intervals of all {len(covered)} predictions, of disturbed runs too, contain ", end="")
    print(f"{sum(covered) / len(covered):.0%} of the measured times; wanted is 90 %")
    met = median(errors) <= WANTED_MEDIAN and errors[-1] <= WANTED_WORST
    wanted = f"median {WANTED_MEDIAN:.0%}, worst {WANTED_WORST:.0%}"
    print(f"wanted: {wanted}: {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

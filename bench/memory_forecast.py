"""How good the memory forecast is: every CNN of the zoo, forecast, then run and measured.

Batch 8, 32 and 128, SGD and Adam, 0 and 2 workers, on the CPU, a few steps of each. Beside ours
stand two figures that people use: torchinfo's total, and the peak of the tensors alone.

A forecast is the one that the run itself makes before it begins.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.models import registry
from stepscope.stats.intervals import median, quantile

MEDIAN_MOST, WORST_MOST = 0.05, 0.15
MODELS = [
    name
    for name, entry in registry.ZOO.items()
    if entry.tokens is None and ("imagenet" not in name or "vgg" in name)
]
STEPS = 4
SAMPLES = 512  # enough for the steps of the largest batch


@dataclass(frozen=True)
class Case:
    """What is trained."""

    model: str
    batch_size: int
    optimizer: str
    workers: int


@dataclass(frozen=True)
class Row:
    """What a case took, and what was said of it beforehand."""

    case: Case
    measured_bytes: int
    forecast_bytes: int
    tensors_bytes: int
    torchinfo_bytes: int | None

    def error(self, forecast_bytes: int | None) -> float | None:
        """Return by which share a figure is off."""
        return None if forecast_bytes is None else forecast_bytes / self.measured_bytes - 1


def run(case: Case, out: str) -> dict[str, Any]:
    """Run a case and return its run.json."""
    stepscope = str(Path(sys.executable).with_name("stepscope"))
    settings = {**asdict(case), "samples": SAMPLES, "epochs": 1, "max_steps": STEPS, "out": out}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [stepscope, "run", *flags, "--device=cpu", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def torchinfo_bytes(case: Case) -> int | None:
    """Return torchinfo's estimate: input, forward and backward, parameters."""
    try:
        from torchinfo import summary  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        return None
    model = registry.build(case.model, classes=10)
    seen = summary(model, input_size=(case.batch_size, 3, 32, 32), verbose=0)
    return int(seen.total_input + seen.total_output_bytes + seen.total_param_bytes)


def measure(case: Case) -> Row:
    with tempfile.TemporaryDirectory() as out:
        summary = run(case, out)["summary"]
    bill = summary["memory_bill"]
    return Row(
        case,
        summary["peak_memory_bytes"],
        bill["total_bytes"],
        max(phase["peak_bytes"] for phase in bill["phases"].values()),
        torchinfo_bytes(case),
    )


def show(row: Row) -> str:
    case, mib = row.case, 2**20
    figures = [f"{row.measured_bytes / mib:8.0f}"]
    for size in (row.forecast_bytes, row.tensors_bytes, row.torchinfo_bytes):
        error = row.error(size)
        figures.append("       ?         " if error is None else f"{size / mib:8.0f} {error:+8.1%}")  # type: ignore[operator]
    settings = f"{case.model:17} {case.batch_size:4} {case.optimizer:5} {case.workers}"
    return f"{settings} {' '.join(figures)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=list(registry.ZOO))
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32, 128])
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adam"])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    args = parser.parse_args()
    print("model             batch opt workers  MiB measured, forecast, tensors alone, torchinfo")
    rows = []
    for settings in itertools.product(args.models, args.batches, args.optimizers, args.workers):
        rows.append(measure(Case(*settings)))
        print(show(rows[-1]), flush=True)
    errors = sorted(abs(row.forecast_bytes / row.measured_bytes - 1) for row in rows)
    alone = [abs(row.tensors_bytes / row.measured_bytes - 1) for row in rows]
    met = median(errors) <= MEDIAN_MOST and errors[-1] <= WORST_MOST
    print(
        f"forecast: off by {median(errors):.1%} in the median, {quantile(errors, 0.9):.1%} at the "
        f"ninth decile, {errors[-1]:.1%} at worst; wanted {MEDIAN_MOST:.0%} and {WORST_MOST:.0%}: "
        f"{'met' if met else 'MISSED'}. Tensors alone: {median(alone):.1%} in the median"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

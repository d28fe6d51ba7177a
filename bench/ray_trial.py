"""What a trial costs more when it goes through Ray: the same tiny sweep trial, here and on a node.

A cluster of one node is begun on loopback, and ended. The trial itself runs in the same way on both
sides; the rest is asking the node, packing the record and bringing it back. Wants `stepscope[ray]`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import psutil
from _alternate import alternate, report

from stepscope.experiments.runners.ray_runner import on_ray
from stepscope.experiments.runners.runner import HERE, PlannedTrial, Runner
from stepscope.experiments.trial import SilentListener
from stepscope.experiments.workload import TrainingWorkload, TrialRequest
from stepscope.records import schema
from stepscope.records.sweep_folder import Trial

ROUNDS = 5
MOST_MORE_S = 1.0
PORT = 6391
TRAINING = TrainingWorkload(
    {"samples": 320, "epochs": 1, "evaluate": False, "energy": "off"}, quick=True
)


def main() -> int:
    ray = Path(sys.executable).with_name("ray")
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    node = ["--node-ip-address", "127.0.0.1", "--include-dashboard", "false"]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        head = subprocess.Popen(
            [ray, "start", "--head", "--block", "--port", str(PORT), "--temp-dir", folder, *node],
            env=quiet,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert head.stdout is not None
            next(line for line in head.stdout if "Ray runtime started" in line)
            with on_ray(f"127.0.0.1:{PORT}") as cluster:
                return compare(cluster, Path(folder))
        finally:
            # Told to stop, a node waits half a minute for work that there is none of.
            for process in [*psutil.Process(head.pid).children(recursive=True), head]:
                process.kill()
            head.wait()


def compare(cluster: Runner, folder: Path) -> int:
    numbers = itertools.count()
    compared = alternate(
        lambda: make_one(cluster, folder / f"trial-{next(numbers)}"),
        lambda: make_one(HERE, folder / f"trial-{next(numbers)}"),
        ROUNDS,
        warm_up=1,
    )
    more_s = compared.first_s - compared.second_s
    return report(
        f"a trial on Ray / here ({more_s * 1e3:.0f} ms more)",
        compared,
        f"{MOST_MORE_S} s more at most",
        more_s <= MOST_MORE_S,
    )


def make_one(runner: Runner, path: Path) -> None:
    order = PlannedTrial(Trial(0, {"max_steps": 5}, 1), TrialRequest(path, SilentListener()))
    with closing(runner.run(TRAINING, [order], lambda trial: None)) as ended:
        ((_, outcome),) = ended
    assert outcome.status == schema.COMPLETED, outcome.reason


if __name__ == "__main__":
    sys.exit(main())

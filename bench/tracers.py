"""What it costs to watch a script: bare, `stepscope trace`, `traceml run` and torch.profiler.

Four processes run the same script, each under its tool, and train in turn, a short block of steps
at a time, in an order that changes every round; those whose turn it is not wait. Where a process's
memory happens to lie can make a difference of some percent, so all four are started several times.

Give `--traceml PATH` the `traceml` command of an environment that has traceml-ai and this torch; it
is no dependency of ours. Without it that row is left out.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.stats import median, quantile

HERE = Path(__file__).parent
MOST = {"lenet": 1.02, "resnet18": 1.005}
# model, batch, steps of a block, rounds of a launch, launches
SETTINGS = [("lenet", 8, 50, 40, 5), ("resnet18", 16, 2, 10, 2)]


@dataclass
class Racer:
    """A script under a tool, waiting to be told to train."""

    process: subprocess.Popen[bytes]
    commands: int
    answers: int
    rest: bytes = field(default=b"")

    def train(self) -> float:
        """Let it train one block; return how long that took it."""
        os.write(self.commands, b"go\n")
        while b"\n" not in self.rest:
            data = os.read(self.answers, 4096)
            if not data:
                raise SystemExit(f"a script ended before its time: {self.process.args}")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return float(line)

    def end(self) -> None:
        """Let it come to its end."""
        os.close(self.commands)
        self.process.wait()
        os.close(self.answers)


def start(command: list[str], arguments: list[str], room: Path) -> Racer:
    room.mkdir()
    pipes = [room / "commands", room / "answers"]
    for pipe in pipes:
        os.mkfifo(pipe)
    with (room / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments, "--commands", str(pipes[0]), "--answers", str(pipes[1])],
            stdout=output,
            stderr=output,
            cwd=room,
        )
    answers = os.open(pipes[1], os.O_RDONLY)  # in the order in which the script opens them
    commands = os.open(pipes[0], os.O_WRONLY)
    return Racer(process, commands, answers)


def race(
    traceml: str | None, model: str, batch: int, steps: int, rounds: int, launches: int
) -> dict[str, list[float]]:
    """Return the ratios to the bare script of every round, by tool."""
    script = str(HERE / "scripts" / "train_on_command.py")
    arguments = ["--model", model, "--batch-size", str(batch), "--steps", str(steps)]
    stepscope = str(Path(sys.executable).with_name("stepscope"))
    tools = {
        "bare": ([sys.executable, script], arguments),
        "bare again": ([sys.executable, script], arguments),
        "stepscope trace": ([stepscope, "trace", "--out", "runs", script], arguments),
        "torch.profiler": ([sys.executable, script], [*arguments, "--tool", "profiler"]),
    }
    if traceml:
        run = [traceml, "run", "--logs-dir", "logs", "--run-name", "race", script, "--args"]
        tools["traceml run"] = (run, [*arguments, "--tool", "traceml"])
    ratios: dict[str, list[float]] = {name: [] for name in tools if name != "bare"}
    for _ in range(launches):
        with tempfile.TemporaryDirectory() as temporary:
            racers = {
                name: start(command, more, Path(temporary) / name.replace(" ", "-"))
                for name, (command, more) in tools.items()
            }
            for number in range(rounds + 2):
                order = list(racers)
                random.shuffle(order)
                took = {name: racers[name].train() for name in order}
                if number >= 2:
                    for name, each in ratios.items():
                        each.append(took[name] / took["bare"])
            for racer in racers.values():
                racer.end()
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traceml", help="the traceml command of another environment")
    parser.add_argument("--only", choices=list(MOST), help="one model alone")
    args = parser.parse_args()
    met = True
    for setting in SETTINGS:
        model = setting[0]
        if args.only not in (None, model):
            continue
        ratios = race(args.traceml, *setting)
        print(f"{model}, batch {setting[1]}: time of a step against the bare script")
        for name, each in ratios.items():
            ordered = sorted(each)
            low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
            print(f"  {name:16} {median(each):.3f}  (quartiles {low:.3f} to {high:.3f})")
        ours = median(ratios["stepscope trace"])
        others = [
            median(ratios[name]) for name in ("torch.profiler", "traceml run") if name in ratios
        ]
        wanted = ours <= MOST[model] and all(ours < other for other in others)
        answer = "met" if wanted else "MISSED"
        print(f"  wanted at most {MOST[model]} and less than the others: {answer}")
        met = met and wanted
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

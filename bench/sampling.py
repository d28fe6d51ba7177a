"""What it costs the light parent to read sensors and telemetry while a training runs.

A tree of pseudo files stands in for a machine with more sensors than most: two processors with
their RAPL zones, a board's rails, thermal zones and a clock for each of eight CPUs. This process
reads it as `run` does, beside an idle process that stands in for the training, and compares its own
CPU time with the time that went by. At most 1 % of one core is wanted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from stepscope.hardware.host import cpu_model
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import run_folder, schema
from stepscope.records.csv_log import CsvLog
from stepscope.telemetry.energy_sampler import EnergyWatch
from stepscope.telemetry.telemetry_sampler import Sampler, Surroundings

MOST_SHARE = 0.01
EVERYTHING = "all of them"
PARTS: dict[str, tuple[str, ...]] = {
    "nothing but waiting": (),
    "energy, ten times a second": ("energy",),
    "heat, clocks, throttling, once a second": ("surroundings",),
    "the processes": ("telemetry",),
    EVERYTHING: ("energy", "surroundings", "telemetry"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--root", type=Path, help="a machine's own files: /, or another tree")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.root or write_machine(Path(temporary) / "machine")
        shares = {
            what: share_of(Path(temporary), root, args.seconds, parts)
            for what, parts in PARTS.items()
        }
    print(f"{cpu_model()}, {args.seconds:g} s each, share of one core")
    for what, share in shares.items():
        print(f"{what:42} {share:8.3%}")
    if shares[EVERYTHING] > MOST_SHARE:
        raise SystemExit(f"more than {MOST_SHARE:.0%} of a core")


def share_of(out: Path, root: Path, lasting_s: float, parts: tuple[str, ...]) -> float:
    made = run_folder.create(out / "runs", "sampling", "run", {})
    energy = EnergyWatch.of_run(made, root, asked="energy" in parts)
    around = Surroundings(root, made.add_event, energy.power_w)
    origin_ns = now_ns()
    idle = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        subprocess.Popen(idle, stdin=subprocess.PIPE) as child,
        CsvLog(made.path / schema.TELEMETRY) as log,
    ):
        sampler = Sampler(psutil.Process(child.pid), log, origin_ns)
        began, used, next_sample = time.monotonic(), time.process_time(), 0.0
        while time.monotonic() - began < lasting_s:
            time.sleep(0.1)
            time_s = seconds(now_ns() - origin_ns)
            energy.read(time_s)
            if time_s >= next_sample:
                next_sample = time_s + sampler.pause_s
                if "telemetry" in parts:
                    sampler.sample()
                if "surroundings" in parts:
                    around.read(time_s, 0.0)
        share = (time.process_time() - used) / (time.monotonic() - began)
        child.communicate()
    energy.close()
    return share


def write_machine(root: Path) -> Path:
    files = {}
    for package in (0, 1):
        parts = ((f"{package}", f"package-{package}"), (f"{package}:0", "core"))
        for zone, name in (*parts, (f"{package}:1", "dram")):
            below = f"sys/class/powercap/intel-rapl:{zone}"
            files |= {
                f"{below}/name": name,
                f"{below}/energy_uj": "1",
            }
    for rail, name in enumerate(("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"), 1):
        below = "sys/class/hwmon/hwmon0"
        files |= {f"{below}/in{rail}_label": name, f"{below}/in{rail}_input": "5000"}
        files |= {f"{below}/curr{rail}_input": "900", f"{below}/name": "ina3221"}
    for zone in range(4):
        below = f"sys/class/thermal/thermal_zone{zone}"
        files |= {f"{below}/type": f"cpu{zone}-thermal", f"{below}/temp": "51000"}
    for cpu in range(8):
        below = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        files |= {f"{below}/{level}_throttle_count": "3" for level in ("core", "package")}
        below = f"sys/devices/system/cpu/cpufreq/policy{cpu}"
        files |= {f"{below}/scaling_{which}_freq": "1500000" for which in ("cur", "max")}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root


if __name__ == "__main__":
    main()
